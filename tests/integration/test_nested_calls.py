"""Calls that make calls, on pools whose only slot they hold."""

import concurrent.futures
import contextlib
import gc
import time
from pathlib import Path

import pytest
from distributed import as_completed, get_client, wait

from scalable.worker import slots

MANIFEST = """\
version: 1
project: {name: nested}
targets:
  local: {provider: local, processes: %s}
components:
  a: {}
"""


@pytest.fixture(scope="module", params=[True, False], ids=["processes", "threads"])
def client(request, running_session):
    with running_session(MANIFEST % str(request.param).lower(), workers=1) as session:
        yield session.client


def set_waits(unseen_s, watch_s):
    before = slots.UNSEEN_WAIT_S, slots.WATCH_S
    slots.UNSEEN_WAIT_S, slots.WATCH_S = unseen_s, watch_s
    return before


@pytest.fixture
def notices_soon(client):
    """Have the worker lend the slots of tasks that wait unseen after a moment."""
    (before,) = client.run(set_waits, 0.1, 0.05).values()
    yield
    client.run(set_waits, *before)


def double(x):
    return 2 * x


def by_result(n):
    client = get_client()
    return sum(client.submit(double, i, tag="a").result() for i in range(n))


def by_gather(n):
    client = get_client()
    return sum(client.gather(client.map(double, range(n), tag="a")))


def by_wait(n):
    client = get_client()
    done, _ = wait(client.map(double, range(n), tag="a"))
    return sum(future.result() for future in done)


def by_as_completed(n):
    client = get_client()
    return sum(future.result() for future in as_completed(client.map(double, range(n), tag="a")))


def slow_double(x):
    time.sleep(0.06)
    return 2 * x


def by_slow_as_completed(n):
    """The slot that was taken back for a result is lent again for the next one."""
    client = get_client()
    futures = client.map(slow_double, range(n), tag="a")
    return sum(future.result() for future in as_completed(futures))


def by_pool_map(n):
    with get_client().pool(tag="a") as pool:
        return sum(pool.map(double, range(n)))


def by_pool_futures(n):
    with get_client().pool(tag="a") as pool:
        futures = [pool.submit(double, i) for i in range(n)]
        return sum(f.result() for f in concurrent.futures.as_completed(futures))


def by_depth(depth):
    return 1 if depth == 0 else 1 + get_client().submit(by_depth, depth - 1, tag="a").result()


WAYS = [
    by_result,
    by_gather,
    by_wait,
    by_as_completed,
    by_slow_as_completed,
    by_pool_map,
    by_pool_futures,
]


@pytest.mark.usefixtures("notices_soon")
@pytest.mark.parametrize("way", WAYS)
def test_a_call_waits_for_calls_of_its_own_tag(client, way):
    assert client.submit(way, 5, tag="a").result(timeout=60) == 20


@pytest.mark.usefixtures("notices_soon")
@pytest.mark.parametrize("way", [by_gather, by_as_completed, by_pool_futures])
def test_a_call_of_a_pool_waits_for_calls_of_its_own_tag(client, way):
    with client.pool(tag="a") as pool:
        assert list(pool.map(way, [2, 3, 4])) == [2, 6, 12]


def test_calls_within_calls_within_calls(client):
    assert client.submit(by_depth, 5, tag="a").result(timeout=60) == 6


def test_many_waiting_calls_at_once(client):
    assert client.gather(client.map(by_gather, [3] * 8, tag="a")) == [6] * 8


def free_slots(dask_worker):
    return dask_worker.state.available_resources, dask_worker.state.total_resources


def test_every_slot_is_given_back(client, eventually):
    client.gather(client.map(by_gather, [3] * 3, tag="a"))
    eventually(lambda: all(free == total for free, total in client.run(free_slots).values()))


def count_running(path, seconds):
    (path / f"began-{time.time()}").touch()
    running = len(list(path.glob("began-*"))) - len(list(path.glob("ended-*")))
    time.sleep(seconds)
    (path / f"ended-{time.time()}").touch()
    return running


def counted_with_a_wait(path):
    before = count_running(path, 0.05)
    get_client().submit(double, 1, tag="a").result()
    return max(before, count_running(path, 0.05))


def test_no_more_calls_run_than_there_are_slots(client, tmp_path):
    counts = client.gather(client.map(counted_with_a_wait, [tmp_path] * 6, tag="a"))
    assert counts == [1] * 6


def until_told(directory):
    while not Path(directory, "end").exists():
        time.sleep(0.02)
    return 1


def marks_and_waits(directory):
    Path(directory, "begun").touch()
    return until_told(directory)


@contextlib.contextmanager
def mark_at_end(directory):
    try:
        yield
    finally:
        Path(directory, "left").touch()


def by_long_gather(count, directory):
    client = get_client()
    with mark_at_end(directory):
        calls = [client.submit(marks_and_waits, directory, tag="a") for _ in range(count)]
        return sum(client.gather(calls))


def by_long_pool(count, directory):
    with mark_at_end(directory), get_client().pool(tag="a") as pool:
        calls = [pool.submit(marks_and_waits, directory) for _ in range(count)]
        return sum(f.result() for f in calls)


@pytest.mark.parametrize("function", [by_long_gather, by_long_pool])
@pytest.mark.parametrize("as_task", [True, False], ids=["task", "call"])
def test_a_waiting_call_is_cancelled_and_its_slot_given_back(
    client, function, as_task, tmp_path, eventually
):
    def start(*args):
        return client.submit(function, *args, tag="a") if as_task else pool.submit(function, *args)

    def slots_of(dask_worker):
        free = dask_worker.state.available_resources
        return dict(free), dask_worker.executors["default"]._max_workers

    held, ended = tmp_path / "held", tmp_path / "ended"
    held.mkdir()
    ended.mkdir()
    (ended / "end").touch()
    workers = list(client.run(slots_of))
    with client.pool(tag="a") as pool:
        cancelled, other = start(10, held), start(4, ended)
        eventually((held / "begun").exists)
        cancelled.cancel()
        eventually((held / "left").exists)
        (held / "end").touch()
        assert other.result(timeout=60) == 4
        assert pool.submit(until_told, ended).result(timeout=60) == 1
    eventually(lambda: client.run(slots_of) == {worker: ({"a": 1}, 1) for worker in workers})


def made_bytes(n):
    return bytes(n)


def leaves_results(directory, how):
    client = get_client()
    results = client.map(made_bytes, [1000, 2000], tag="a")
    wait(results)
    Path(directory, "begun").touch()
    if how == "fails":
        raise ValueError("the results are here")
    client.submit(until_told, directory, tag="a").result()


def results_of_nested_calls(dask_scheduler):
    return [key for key in dask_scheduler.tasks if str(key).startswith("made_bytes")]


@pytest.mark.parametrize("how", ["fails", "waits"])
@pytest.mark.parametrize("verb", ["submit", "executor"])
def test_results_of_nested_calls_leave_the_workers_with_a_call_that_is_cancelled_or_fails(
    client, tmp_path, eventually, how, verb
):
    client.run(gc.disable)  # which would find them some time later
    try:
        sender = client if verb == "submit" else client.pool(tag="a")
        tag = {"tag": "a"} if verb == "submit" else {}
        future = sender.submit(leaves_results, str(tmp_path), how, **tag)
        eventually((tmp_path / "begun").exists)
        if how == "fails":
            assert isinstance(future.exception(timeout=60), ValueError)
        future.cancel()
        del future
        eventually(lambda: client.run_on_scheduler(results_of_nested_calls) == [], timeout=30)
    finally:
        (tmp_path / "end").touch()
        client.run(gc.enable)
