"""A scheduler keeps nothing for ever of workers, clients and tasks that have gone."""

import asyncio
import gc
from collections import Counter

import dask
import pytest
from distributed import Client, Worker
from distributed.scheduler import WorkerState

from scalable.dask_compat import scheduler_extensions
from scalable.scheduler.pool_scheduler import PoolScheduler

AT_ONCE = {"distributed.scheduler.events-cleanup-delay": "10ms"}


def run(scenario, config=None):
    """Run a scenario with a scheduler that forgets the events of the departed at once."""

    async def go():
        with dask.config.set(AT_ONCE | (config or {})):
            async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
                return await asyncio.wait_for(scenario(scheduler), 60)

    return asyncio.run(go())


def client_of(scheduler):
    return Client(scheduler.address, asynchronous=True, set_as_default=False)


def worker_of(scheduler, **options):
    return Worker(scheduler.address, nthreads=1, dashboard=False, **options)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_clients_that_left_have_no_topics_and_get_no_events():
    async def scenario(scheduler):
        topics = scheduler._broker._topics
        async with client_of(scheduler) as stays:
            stays.subscribe_topic("news", print)
            await until(lambda: topics["news"].subscribers)
            for _ in range(3):
                async with client_of(scheduler) as goes:
                    goes.subscribe_topic("news", print)
                    await until(lambda: len(topics["news"].subscribers) == 2)
                await until(lambda gone=goes.id: gone not in scheduler.clients)
            assert topics["news"].subscribers == {stays.id}
            await until(lambda: set(filter(lambda name: "Client" in name, topics)) == {stays.id})

    run(scenario)


def test_a_topic_that_somebody_reads_stays():
    async def scenario(scheduler):
        broker = scheduler._broker
        broker.subscribe("news", "reader")
        broker.publish(["news", "unread"], "event")
        broker.truncate("news")
        broker.truncate("unread")
        broker.truncate("unknown")
        broker.truncate()
        assert "news" in broker._topics
        assert {"unread", "unknown"}.isdisjoint(broker._topics)

    run(scenario)


@pytest.mark.own_process
def test_workers_that_left_are_not_kept():
    async def scenario(scheduler):
        stealing = scheduler.extensions["stealing"]
        for _ in range(3):
            async with worker_of(scheduler):
                (ws,) = scheduler.workers.values()
                # As the balancing of work does, which looks at each worker.
                stealing._combined_occupancy(ws, occupancies={ws: 0.0})
                stealing._combined_nprocessing(ws)
                address = ws.address
            await until(lambda: not scheduler.workers)
            await until(lambda gone=address: gone not in scheduler._broker._topics)
        del ws
        assert not stealing.in_flight_tasks
        assert not stealing.in_flight_occupancy
        gc.collect()
        return [kept for kept in gc.get_objects() if isinstance(kept, WorkerState)]

    assert run(scenario) == []


def fail(number):
    raise ValueError(number)


def test_calls_that_fail_are_not_kept_for_the_day_when_one_succeeds():
    async def scenario(scheduler):
        async with client_of(scheduler) as client, worker_of(scheduler):
            for number in range(3):
                future = client.submit(fail, number)
                assert isinstance(await future.exception(), ValueError)
                del future
                await until(lambda: not scheduler.tasks)
            assert scheduler.extensions["stealing"].unknown_durations == {}

    run(scenario)


TWO_SPANS = {scheduler_extensions.KEPT: 2}


def test_spans_of_calls_that_are_forgotten_are_forgotten_but_for_the_latest():
    async def scenario(scheduler):
        spans = scheduler.extensions["spans"]
        async with client_of(scheduler) as client:
            async with worker_of(scheduler):
                first = client.submit(abs, -1, key="held")
                assert await first == 1
                for number in range(20):
                    assert await client.submit(pow, number, 2, key=f"n{number}-x") == number**2
                    await until(lambda: set(scheduler.tasks) == {"held"})
                assert len(spans.spans) <= 5
                assert len(spans.spans_search_by_name["default",]) <= 5
                assert len(spans.spans_search_by_tag["default"]) <= 5
                held = scheduler.tasks["held"].group.span_id
                assert held in spans.spans  # the task of which the client has a future
                assert await client.submit(abs, -2, key="held-again") == 2
            # What a worker measured last may concern a span that is forgotten.
            spans.heartbeat(None, {("execute", "gone", "abs", "thread-cpu", "seconds"): 1.0})
            spans.heartbeat(None, {("execute", held, "abs", "thread-cpu", "seconds"): 1.0})
            assert spans.spans[held]._cumulative_worker_metrics
            del first
            return Counter(span.name for span in spans.root_spans)

    assert run(scenario, TWO_SPANS).keys() == {("default",)}


def test_the_history_of_threads_begins_with_the_oldest_span():
    async def scenario(scheduler):
        spans = scheduler.extensions["spans"]
        async with client_of(scheduler) as client:
            for number in range(12):
                async with worker_of(scheduler):
                    future = client.submit(pow, number, 2, key=f"n{number}-x")
                    assert await future == number**2
                    del future
                    await until(lambda: not scheduler.tasks)
            assert len(scheduler.total_nthreads_history) <= 2 * 6
            (*_, last) = spans.root_spans
            # Its only worker joined before it began. (Dask's intervals of a task that ran for less
            # time than it estimates the difference of two clocks are empty.)
            threads = [number for _, number in scheduler.total_nthreads_history]
            assert threads[last._total_nthreads_offset] == 1
            assert {number for _, _, number in last.nthreads_intervals} <= {1}
            offsets = [span._total_nthreads_offset for span in spans.root_spans]
            assert offsets == sorted(offsets)
            assert offsets[0] <= 1

    run(scenario, TWO_SPANS)


def test_few_of_the_messages_are_kept_that_were_sent_to_a_worker():
    """They contain tasks with their arguments."""

    async def scenario(scheduler):
        async with worker_of(scheduler, resources={"a": 1}), client_of(scheduler) as client:
            for number in range(60):
                await client.submit(abs, number, pure=False)
            (stream,) = scheduler.stream_comms.values()
            assert len(stream.recent_message_log) <= 50

    run(scenario)
