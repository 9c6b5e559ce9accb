"""Calls that make calls, on pools whose only slot they hold."""

import concurrent.futures
import gc
import time
from pathlib import Path

import pytest
from distributed import as_completed, get_client, wait

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
    time.sleep(0.15)
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


@pytest.mark.parametrize("way", WAYS)
def test_a_call_waits_for_calls_of_its_own_tag(client, way):
    assert client.submit(way, 5, tag="a").result(timeout=60) == 20


@pytest.mark.parametrize("way", WAYS)
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


def nap(seconds):
    time.sleep(seconds)
    return 1


def by_long_gather(count, seconds):
    client = get_client()
    return sum(client.gather([client.submit(nap, seconds, tag="a") for _ in range(count)]))


def by_long_pool(count, seconds):
    with get_client().pool(tag="a") as pool:
        return sum(f.result() for f in [pool.submit(nap, seconds) for _ in range(count)])


@pytest.mark.parametrize("function", [by_long_gather, by_long_pool])
@pytest.mark.parametrize("as_task", [True, False], ids=["task", "call"])
def test_a_waiting_call_is_cancelled_and_its_slot_given_back(client, function, as_task, eventually):
    def start(*args):
        return client.submit(function, *args, tag="a") if as_task else pool.submit(function, *args)

    def slots(dask_worker):
        free = dask_worker.state.available_resources
        return dict(free), dask_worker.executors["default"]._max_workers

    workers = list(client.run(slots))
    with client.pool(tag="a") as pool:
        cancelled, other = start(10, 0.5), start(4, 0.2)
        time.sleep(0.4)
        cancelled.cancel()
        assert other.result(timeout=60) == 4
        assert pool.submit(nap, 0).result(timeout=60) == 1
    eventually(lambda: client.run(slots) == {worker: ({"a": 1}, 1) for worker in workers})


def made_bytes(n):
    return bytes(n)


def until_told(directory):
    while not Path(directory, "end").exists():
        time.sleep(0.02)


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
