"""Each seam into Dask: what it adds to Dask's classes, and what it needs of them."""

import asyncio
import gc
import logging
import os
import pickle
import re
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from importlib import metadata
from types import SimpleNamespace

import cloudpickle
import dask
import pytest
from distributed import Client, Future, Worker, threadpoolexecutor, wait
from distributed import client as dask_client
from distributed.active_memory_manager import ReduceReplicas
from distributed.batched import BatchedSend
from distributed.comm import connect
from distributed.comm.core import CommClosedError
from distributed.core import Status
from distributed.protocol import core, to_serialize
from distributed.protocol import pickle as dask_pickle
from distributed.scheduler import WorkerState
from distributed.worker import thread_state
from IPython.core.ultratb import AutoFormattedTB

from scalable import dask_compat
from scalable.client.client import ScalableClient
from scalable.dask_compat import (
    NEWEST,
    OLDEST,
    check_version,
    client,
    scheduler,
    scheduler_extensions,
    worker,
)
from scalable.dask_compat import scheduler as scheduler_compat
from scalable.dask_compat.client import forget_callers, survive_unpickling
from scalable.dask_compat.scheduler import (
    ExtendedScheduler,
    LostWorker,
    workers_by_what_they_told,
)
from scalable.dask_compat.scheduler_extensions import COMPARED, SamplingMemoryManager
from scalable.dask_compat.worker import forget_workers, guard_threads
from scalable.errors import ClusterError
from scalable.manager.pool_cluster import PoolCluster
from scalable.protocol import messages
from scalable.protocol.lending import CallInterrupted
from scalable.protocol.operations import WIRE, WIRE_VERSION
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.bundles import raise_in
from scalable.worker.pool_worker import PoolWorker

# Versions, and what is recognized -----------------------------------------------------------------
# The version of Dask is checked at the start, and events of lost workers are recognized.


@pytest.fixture
def installed(monkeypatch):
    """Pretend that another version of distributed is installed."""

    def pretend(version):
        check_version.cache_clear()
        monkeypatch.setattr(dask_compat.metadata, "version", {"distributed": version}.__getitem__)

    yield pretend
    check_version.cache_clear()


@pytest.mark.parametrize(
    "start",
    [
        lambda: PoolCluster(asynchronous=True),
        lambda: ScalableClient("tcp://127.0.0.1:1"),
        lambda: PoolWorker("tcp://127.0.0.1:1"),
        PoolScheduler,
    ],
    ids=["cluster", "client", "worker", "scheduler"],
)
def test_nothing_starts_on_a_version_that_is_too_old(start, installed):
    installed("2026.5.1")
    with pytest.raises(ClusterError, match="distributed 2026.5.1 is too old") as caught:
        start()
    assert "distributed>=2026.6" in caught.value.hint


def test_a_newer_version_than_tested_is_named_once(installed, caplog):
    installed("2031.1.0")
    with caplog.at_level(logging.WARNING, "scalable"):
        check_version()
        check_version()
    assert [record.args[0] for record in caplog.records] == ["2031.1.0"]


@pytest.mark.parametrize("version", ["2026.6.0", "2026.8.0", "2026.8.1.dev3+g1234"])
def test_a_tested_version_needs_no_word(version, installed, caplog):
    installed(version)
    check_version()
    assert not caplog.records


def test_the_supported_versions_are_those_of_the_package():
    required = [r for r in metadata.requires("scalable") if r.startswith("distributed")]
    assert tuple(map(int, re.findall(r"\d+", required[0])[:2])) == OLDEST
    own = tuple(map(int, metadata.version("distributed").split(".")[:2]))
    assert OLDEST <= own <= NEWEST, "raise NEWEST once all tests pass with this version"


def test_events_of_other_kinds_are_no_lost_workers():
    message = {
        "action": "remove-worker", "worker": "tcp://a", "expected": False,
        "processing-tasks": ["x"], "lost-computed-tasks": [],
    }  # fmt: skip
    assert LostWorker.of("all", message).running == ("x",)
    assert LostWorker.of("tcp://a", message) is None
    assert LostWorker.of("all", {"action": "add-worker"}) is None
    assert LostWorker.of("all", "words") is None


# Waits of clients, threads of tasks, ended peers --------------------------------------------------
# Waits of Dask's client and threads of tasks are recognized; messages to ended peers are dropped.


class Synced(Exception):
    """Raised instead of waiting."""


class Waiter:
    """Stands in for a client: it shows what Dask would run and wait for."""

    asynchronous = False

    def sync(self, func, *args, **kwargs):
        raise Synced(func)

    _gather = Client._gather
    _retry = Client._retry


def future():
    made = object.__new__(Future)
    made._state, made._client, made.key = SimpleNamespace(status="pending"), Waiter(), "key"
    made._verify_initialized = lambda: None
    made._cleared = True
    return made


@pytest.mark.parametrize(
    "waiting",
    [
        lambda: future().result(),
        lambda: future().exception(),
        lambda: future().traceback(),
        lambda: Client.gather(Waiter(), [future()]),
    ],
    ids=["result", "exception", "traceback", "gather"],
)
def test_functions_that_wait_for_calls_are_recognized(waiting):
    with pytest.raises(Synced) as caught:
        waiting()
    assert caught.value.args[0].__name__ in client.WAITS


def test_wait_is_recognized(monkeypatch):
    monkeypatch.setattr(dask_client, "default_client", Waiter)
    with pytest.raises(Synced) as caught:
        wait([])
    assert caught.value.args[0].__name__ in client.WAITS


def test_other_coroutines_are_not_waits():
    assert client.WAITS.isdisjoint({Client._retry.__name__, Client._cancel.__name__})


def test_a_thread_without_a_call_has_none():
    assert worker.current_call() is None


def test_a_thread_with_a_key_and_no_worker_has_none():
    found = []

    def look():
        thread_state.key, thread_state.start_time = "key", 0.0
        found.append(worker.current_call())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [None]


def test_the_thread_of_a_task_is_found():
    threads = SimpleNamespace(active_threads={7: "key"}, active_threads_lock=threading.Lock())
    seen = []
    assert worker.act_on_thread_of(threads, "key", seen.append) == 7
    assert worker.act_on_thread_of(threads, "other", seen.append) is None
    assert seen == [7]
    assert worker.runs_in(threads, 7, "key")
    assert not worker.runs_in(threads, 7, "other")


def closed_connection():
    """A stream of messages whose connection has ended, before anybody was told."""
    sending = BatchedSend(interval="2ms", loop=SimpleNamespace(add_callback=lambda *_: None))
    sending.start(SimpleNamespace(closed=lambda: True))
    return sending


def test_a_message_to_a_client_or_worker_that_has_just_ended_is_no_error():
    told = SimpleNamespace(
        client_comms={"client": closed_connection()}, stream_comms={"tcp://w": closed_connection()}
    )
    scheduler.send_to_client(told, "client", {"op": "outcomes"})
    scheduler.send_to_worker(told, "tcp://w", {"op": "interrupt"})


# A client that reconnects -------------------------------------------------------------------------
# A client that reconnects before the loss of its connection is noticed.

LIMIT_S = 30.0
OPTIONS = {"host": "127.0.0.1", "port": 0, "protocol": "tcp", "dashboard_address": ":0"}


async def registered(scheduler):
    comm = await connect(scheduler.address)
    message = {"op": "register-client", "client": "c", "reply": False, "versions": {}}
    await comm.write(message)
    assert (await comm.read())[0]["op"] == "stream-start"
    return comm


async def test_a_new_connection_outlives_the_earlier_ones():
    async with asyncio.timeout(LIMIT_S), ExtendedScheduler(**OPTIONS) as scheduler:
        comms = [await registered(scheduler) for _ in range(3)]
        for earlier in comms[:-1]:
            await earlier.close()
        await asyncio.sleep(0.2)  # the scheduler reads the ends of the earlier ones
        await comms[-1].write([{"op": "client-desires-keys", "keys": [], "client": "c"}])
        scheduler.report({"op": "told"}, client="c")
        assert (await comms[-1].read())[0]["op"] == "told"
        assert {"c"} <= scheduler.clients.keys() & scheduler.client_comms.keys()
        await comms[-1].close()
        while "c" in scheduler.clients:
            await asyncio.sleep(0.01)


# What workers tell --------------------------------------------------------------------------------
# A worker's facts from its start are read where the worker is.


def test_each_worker_comes_with_what_it_told():
    workers = {"a": SimpleNamespace(extra={"manager": "m"}), "b": SimpleNamespace(extra={})}
    told = workers_by_what_they_told(SimpleNamespace(workers=workers), "manager")
    assert told == [(workers["a"], "m"), (workers["b"], None)]


# Workers that left together -----------------------------------------------------------------------
# Workers are told together of all workers that left in a moment.


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(scheduler_compat, "COLLECT_S", 0.02)


class Stream:
    """Stands in for the connection to a worker; it takes messages apart, as a receiver does."""

    def __init__(self, *, closed=False, takes_apart=False, ours=False):
        self.closed, self.takes_apart, self.ours, self.sent = closed, takes_apart, ours, []

    def send(self, *messages):
        if self.closed:
            raise CommClosedError
        messages = list(messages)
        self.sent.append([dict(message) for message in messages])
        if self.takes_apart:
            for message in messages:
                message.pop("op")


def scheduler_of(streams):
    scheduler = object.__new__(ExtendedScheduler)
    scheduler.stream_comms, scheduler._left = streams, {}
    told = {
        address: {WIRE: WIRE_VERSION} if stream.ours else {} for address, stream in streams.items()
    }
    scheduler.workers = {address: SimpleNamespace(extra=told[address]) for address in told}
    scheduler.aliases = {}
    return scheduler


def left(worker):
    return {"op": "remove-worker", "worker": worker, "stimulus_id": f"left-{worker}"}


async def send(scheduler, *gone):
    """Do what Dask does for each worker that has left."""
    for each in gone:
        for other in scheduler.stream_comms:
            scheduler.worker_send(other, left(each))
    await asyncio.sleep(3 * scheduler_compat.COLLECT_S)


def test_each_worker_gets_all_of_them_at_once():
    streams = {f"tls://{i}": Stream() for i in range(3)}
    asyncio.run(send(scheduler_of(streams), "a", "b"))
    assert [stream.sent for stream in streams.values()] == [[[left("a"), left("b")]]] * 3


def test_our_workers_get_the_addresses_as_one_text_that_is_made_once():
    streams = {f"tls://{i}": Stream(ours=True) for i in range(3)}
    asyncio.run(send(scheduler_of(streams), "a", "b"))
    texts = [message["left"] for stream in streams.values() for (message,) in stream.sent]
    assert texts == [b"a\nb"] * 3
    assert len(set(map(id, texts))) == 1


def test_a_worker_forgets_each_of_them_as_dask_has_it_forget_one():
    forgotten = []
    worker = SimpleNamespace(
        stream_handlers={"remove-worker": lambda worker, stimulus_id: forgotten.append(worker)}
    )
    forget_workers(worker, b"tls://a:1\ntls://b:2")
    assert forgotten == ["tls://a:1", "tls://b:2"]


def test_a_closed_connection_and_workers_of_this_process_change_nothing_for_others():
    streams = {
        "tls://0": Stream(closed=True),
        "inproc://1": Stream(takes_apart=True),
        "inproc://2": Stream(takes_apart=True),
        "tls://3": Stream(),
    }
    asyncio.run(send(scheduler_of(streams), "a"))
    sent = [stream.sent for stream in streams.values()]
    assert sent == [[], [[left("a")]], [[left("a")]], [[left("a")]]]


def test_other_messages_are_sent_at_once():
    stream = Stream()
    scheduler_of({"tls://0": stream}).worker_send("tls://0", {"op": "free-keys", "keys": []})
    assert stream.sent == [[{"op": "free-keys", "keys": []}]]


def test_the_more_workers_there_are_the_less_often_they_are_told(monkeypatch):
    paused = []

    async def gone(streams):
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda seconds, _: paused.append(seconds))
        scheduler_of(streams).worker_send("tls://0", left("a"))

    for count in (3, 5000):
        asyncio.run(gone({f"tls://{i}": Stream() for i in range(count)}))
    assert paused == [scheduler_compat.COLLECT_S, 5000 * scheduler_compat.COLLECT_EACH_S]


def test_a_worker_with_the_address_of_one_that_left_is_not_told_of_itself(monkeypatch):
    async def register(scheduler, comm, *, address, **_):
        scheduler.stream_comms[address] = Stream()

    async def comes_back():
        scheduler = scheduler_of({"tls://127.0.0.1:1": (other := Stream())})
        for gone in ("tls://127.0.0.1:2", "tls://127.0.0.1:3"):
            scheduler.worker_send("tls://127.0.0.1:1", left(gone))
        await scheduler.add_worker(None, address="tls://127.0.0.1:2", server_id="2")
        assert other.sent == [[left("tls://127.0.0.1:2"), left("tls://127.0.0.1:3")]]
        await asyncio.sleep(3 * scheduler_compat.COLLECT_S)
        assert len(other.sent) == 1
        assert scheduler.stream_comms["tls://127.0.0.1:2"].sent == []

    monkeypatch.setattr(scheduler_compat.Scheduler, "add_worker", register)
    asyncio.run(comes_back())


# Results of workers that leave --------------------------------------------------------------------
# Results of workers that leave go to one of a few others, however many there are.


class Counting(dict):
    """Memory in use of each worker, and how often it was looked up."""

    looks = 0

    def __getitem__(self, worker):
        self.looks += 1
        return super().__getitem__(worker)


def manager_of(memory, running=None):
    manager = object.__new__(SamplingMemoryManager)
    running = set(memory) if running is None else running
    manager.scheduler, manager._running = SimpleNamespace(running=running), list(running)
    manager.workers_memory = Counting(memory)
    return manager


def result(*holders):
    return SimpleNamespace(state="memory", who_has=set(holders), actor=False)


def test_few_of_many_workers_are_compared():
    manager = manager_of({f"w{i}": i for i in range(5000)})
    assert manager._find_recipient(result("w1"), None, set()) is not None
    assert manager.workers_memory.looks <= COMPARED


def test_results_spread_over_all_workers():
    memory = {f"w{i}": 0 for i in range(200)}
    manager = manager_of(memory)
    for _ in range(2000):
        manager.workers_memory[manager._find_recipient(result("gone"), None, set())] += 1
    counts = Counter(manager.workers_memory.values())
    assert set(counts) <= {9, 10, 11}


def test_all_workers_are_looked_at_where_the_few_cannot_take_it():
    memory = {f"w{i}": i for i in range(50)}
    holders = set(memory) - {"w49"}
    assert manager_of(memory)._find_recipient(result(*holders), None, set()) == "w49"
    assert manager_of(memory)._find_recipient(result(*memory), None, set()) is None


def test_a_policy_that_names_workers_is_obeyed():
    manager = manager_of({f"w{i}": i for i in range(500)})
    assert manager._find_recipient(result("gone"), {"w480", "w490"}, set()) == "w480"


@pytest.mark.parametrize("count", [0, 1, COMPARED])
def test_few_workers_are_compared_as_dask_does(count):
    memory = {f"w{i}": i for i in range(count)}
    found = manager_of(memory)._find_recipient(result("gone"), None, set())
    assert found == ("w0" if count else None)


class AnyPolicy(ReduceReplicas):
    """A policy that may do more than to drop copies."""


@pytest.mark.parametrize(
    ("copies", "policies", "looks"),
    [(0, [ReduceReplicas], False), (1, [ReduceReplicas], True), (0, [AnyPolicy], True)],
)
def test_no_worker_is_looked_at_where_no_result_has_copies(copies, policies, looks):
    manager = manager_of({})
    manager.scheduler.replicated_tasks = {object() for _ in range(copies)}
    manager.scheduler.workers = Counting()
    manager.policies = {kind() for kind in policies}
    manager.measure, ran = "managed", []
    manager._run_policies = lambda: ran.append(True)
    manager.run_once()
    assert ran == [True] * looks


# Nothing is kept of what has gone -----------------------------------------------------------------
# A scheduler keeps nothing for ever of workers, clients and tasks that have gone.

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


def test_a_check_for_tasks_to_move_ends_when_its_time_is_over():
    async def scenario(scheduler):
        stealing, idle = scheduler.extensions["stealing"], {object()}
        task = SimpleNamespace(resource_restrictions={"a": 1}, worker_restrictions=None)
        task.host_restrictions = None
        # The time begins with the first task: Dask looks at all workers before.
        assert stealing._get_thief(scheduler, task, idle, occupancies={}) is None
        assert idle
        time.sleep(scheduler_extensions.CHECK_S)
        assert stealing._get_thief(scheduler, task, idle, occupancies={}) is None
        assert not idle  # Dask's search goes on as long as there are idle workers

    run(scenario)


def test_a_process_keeps_no_servers_that_have_closed():
    kept = []

    async def scenario(scheduler):
        kept.append(weakref.ref(scheduler))
        async with (
            PoolWorker(scheduler.address, nthreads=1, dashboard=False) as worker,
            client_of(scheduler) as client,
        ):
            kept.append(weakref.ref(worker))
            assert await client.submit(abs, -1) == 1

    run(scenario)
    gc.collect()
    assert [server() for server in kept] == [None, None]


def fail(number):
    raise ValueError(number)


def test_log_records_keep_the_text_of_an_error_and_not_what_it_holds():
    class Connection:
        def __str__(self):
            return "a connection"

    kept = []

    async def scenario(scheduler):
        connection = Connection()
        kept.append(weakref.ref(connection))
        try:
            fail(connection)
        except ValueError:
            error = sys.exc_info()
        where = ("distributed.scheduler", logging.ERROR, __file__, 1)
        keep = scheduler._deque_handler.handle
        keep(logging.LogRecord(*where, "lost %s", (connection,), error))
        for message, argument in (("%d", "no number"), ("%(a)s", {"b": 1})):
            keep(logging.LogRecord(*where, message, (argument,), None))
            scheduler._deque_handler.deque.pop()
        del connection, error
        gc.collect()
        assert kept[0]() is None
        (logged,) = [text for _, text in scheduler.get_logs() if "lost" in text]
        assert "lost a connection" in logged
        assert "Traceback" in logged
        assert "ValueError: " in logged

    run(scenario)


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


# Dask's SpecCluster -------------------------------------------------------------------------------
# A cluster of pools rests on Dask's SpecCluster, and says at its start where that has changed.


class Noted(PoolCluster):
    """Notes what is asked of its manager; nothing is started."""

    status = None

    def __init__(self, status):
        self._process = os.getpid()
        self.status, self.scheduler_info = status, {"workers": {}}
        self._correct_state_waiting = None
        self.calls = []
        reconciler = SimpleNamespace(wake=lambda: self.calls.append("workers changed"))
        self.manager = SimpleNamespace(align=self.align, reconciler=reconciler)

    async def align(self):
        self.calls.append("bring in line")


@pytest.fixture
def running():
    cluster = Noted(Status.running)
    yield cluster
    cluster.status = Status.closed  # Dask warns of clusters that are left open


def test_one_pass_brings_the_units_in_line_for_all_that_ask_at_once(running):
    async def main():
        await asyncio.gather(running._correct_state(), running._correct_state())

    asyncio.run(main())
    assert running.calls == ["bring in line"]


def test_a_later_request_makes_a_pass_of_its_own(running):
    async def main():
        await running._correct_state()
        await running._correct_state()
        await running._correct_state_internal()

    asyncio.run(main())
    assert running.calls == ["bring in line"] * 3


def test_nothing_is_brought_in_line_while_the_cluster_does_not_run():
    cluster = Noted(Status.closed)
    asyncio.run(cluster._correct_state_internal())
    assert cluster.calls == []


def test_arrivals_and_departures_are_reported_and_no_worker_is_closed(running):
    running._update_worker_status("add", {"workers": {"tcp://1": {"name": "a"}}})
    assert running.scheduler_info["workers"] == {"tcp://1": {"name": "a"}}
    running._update_worker_status("remove", "tcp://1")
    assert running.scheduler_info["workers"] == {}
    running._update_worker_status("remove", "tcp://2")  # it came and went before anybody read of it
    assert running.calls == ["workers changed"] * 3


# Values that cannot be loaded ---------------------------------------------------------------------
# Errors raised while a value is unpickled reach its reader, without an entry of Dask's log.


def explode(kind):
    raise kind("boom")


class Bad:
    """A value that cannot be loaded."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return explode, (self.kind,)


@pytest.fixture
def logged(caplog):
    survive_unpickling()
    protocol = logging.getLogger("distributed.protocol.core")
    protocol.addHandler(caplog.handler)
    yield caplog
    protocol.removeHandler(caplog.handler)


@pytest.mark.parametrize(("kind", "raised"), [(ValueError, ValueError), (SystemExit, RuntimeError)])
def test_error_of_a_value_is_raised_and_not_logged(logged, kind, raised):
    frames = core.dumps({"x": to_serialize(Bad(kind))})
    with pytest.raises(raised, match="boom"):
        core.loads(frames)
    assert [each for each in logged.records if each.levelno > logging.INFO] == []


def test_unreadable_message_is_logged(logged):
    with pytest.raises(Exception):  # noqa: B017, PT011 - the class is msgpack's
        core.loads([b"\xc1"])
    assert {each.levelno for each in logged.records} == {logging.CRITICAL}


def divide(number):
    return 1 / number


class Large:
    """What a caller has in a variable."""


@pytest.fixture
def raised():
    forget_callers()
    with pytest.raises(ZeroDivisionError) as error:
        divide(0)
    return error.value


def test_an_unpickled_traceback_keeps_no_data_of_its_readers(raised):
    data = pickle.dumps(raised.__traceback__)

    def read():
        large = Large()
        return pickle.loads(data), weakref.ref(large)

    trace, large = read()
    assert large() is None
    expected = traceback.extract_tb(raised.__traceback__)
    assert [(row.name, row.lineno, row.line) for row in traceback.extract_tb(trace)] == [
        (row.name, row.lineno, row.line) for row in expected
    ]


def test_notebooks_show_an_unpickled_traceback(raised):
    shown = [
        AutoFormattedTB(mode="Context").text(type(raised), raised, trace)
        for trace in (raised.__traceback__, pickle.loads(pickle.dumps(raised.__traceback__)))
    ]
    assert "ZeroDivisionError" in shown[1]
    assert shown[1].count("--->") == shown[0].count("--->")


# Code that is sent by value -----------------------------------------------------------------------
# Messages keep the files of functions; Dask's tokens and the pickles of users do not have them.


def of_script(file):
    """Return a function with a nested one, as a script with this path defines it."""
    names = {"__name__": "__main__"}
    source = "def outer(x):\n    def inner():\n        raise ValueError(x)\n    inner()\n"
    exec(compile(source, file, "exec"), names)
    return names["outer"]


@pytest.mark.parametrize("dump", [messages.dump, dask_pickle.dumps])
def test_function_keeps_its_file_and_lines_in_messages(dump):
    sent = pickle.loads(dump(of_script("/the/script.py")))
    with pytest.raises(ValueError, match="1") as caught:
        sent(1)
    assert [(str(one.path), one.lineno + 1) for one in caught.traceback[1:]] == [
        ("/the/script.py", 4),
        ("/the/script.py", 3),
    ]


def test_tokens_and_pickles_of_users_have_no_files():
    one, other = of_script("/one.py"), of_script("/other.py")
    assert dask.base.tokenize(one) == dask.base.tokenize(other)
    assert cloudpickle.dumps(one) == cloudpickle.dumps(other)


@pytest.fixture
def rejoining():
    """A task that waits until another one lets it rejoin the threads of its executor."""
    guard_threads()
    executor, held = threadpoolexecutor.ThreadPoolExecutor(1), threading.Event()

    def rejoins():
        threadpoolexecutor.secede()
        inner = executor.submit(held.wait, 60)
        while not inner.running():
            time.sleep(0.01)
        threadpoolexecutor.rejoin()

    future = executor.submit(rejoins)
    while not executor._rejoin_list:
        time.sleep(0.01)
    thread, joined = executor._rejoin_list[0]
    yield SimpleNamespace(thread=thread.ident, joined=joined, let=held.set)
    with pytest.raises(CallInterrupted):
        future.result(60)
    assert [executor.submit(abs, -1).result(60) for _ in range(3)] == [1, 1, 1]
    executor.shutdown(timeout=60)


def test_a_thread_that_is_interrupted_while_it_rejoins_runs_tasks_or_leaves(rejoining):
    raise_in(rejoining.thread)
    rejoining.let()


def test_a_rejoining_task_and_a_thread_that_starts_another_do_not_wait_for_each_other():
    guard_threads()
    executor, started = threadpoolexecutor.ThreadPoolExecutor(1), threading.Event()
    rejoined, may_start = threading.Event(), threading.Event()

    def rejoins():
        threadpoolexecutor.secede()
        threadpoolexecutor.rejoin()
        rejoined.set()

    def starts():
        may_start.wait(60)
        threading.Thread(target=started.set).start()

    threading.Thread(target=starts, daemon=True).start()
    executor._shutdown_lock.acquire()  # as a worker's event loop while it submits a task
    try:
        executor._work_queue.put(SimpleNamespace(run=rejoins))
        executor._adjust_thread_count()
        while not executor._rejoin_list:
            time.sleep(0.01)
        may_start.set()
        assert started.wait(20)
    finally:
        executor._shutdown_lock.release()
    assert rejoined.wait(60)
    assert executor.submit(abs, -1).result(60) == 1
    executor.shutdown(timeout=60)


def test_an_interrupt_as_a_thread_begins_to_settle_where_it_belongs_ends_no_thread(rejoining):
    with worker.uninterrupted(rejoining.thread):
        rejoining.let()
        rejoining.joined.wait(60)
        time.sleep(0.1)  # it waits for the lock now
        raise_in(rejoining.thread)
