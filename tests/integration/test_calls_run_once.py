"""Calls of executors begin once, and none is lost: cancelled calls, leaving workers, lost inputs."""

import time
from concurrent.futures import wait

import pytest

MANIFEST = """\
version: 1
project: {name: once}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 2}
  b: {cpus: 1, workers: 1}
"""


@pytest.fixture(scope="module")
def session(running_session):
    with running_session(MANIFEST, workers=3) as session:
        yield session


@pytest.fixture
def client(session, eventually):
    # A test before may have ended a worker, which is replaced.
    eventually(lambda: [session.client.worker_count(tag) for tag in "ab"] == [2, 1])
    return session.client


def double(x):
    return 2 * x


def note(path, x, seconds=0.0):
    """Leave a line for each start of a call."""
    with path.open("a") as file:
        file.write(f"{x}\n")
    time.sleep(seconds)
    return x


def stick(path, x):
    """Leave a line, and ignore every interrupt."""
    note(path, x)
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - that is what is tried
            pass


def starts(path):
    return path.read_text().split() if path.exists() else []


def begin_together(pool, calls):
    """Submit calls that travel in one bundle: the calls before were quick, and a slot is taken."""
    list(pool.map(double, range(2000)))
    blocker = pool.submit(time.sleep, 0.3)
    [pool.submit(double, x) for x in range(4)]
    futures = [pool.submit(*call) for call in calls]
    blocker.result(timeout=60)
    return futures


def test_a_cancelled_call_that_does_not_end_does_not_begin_again(client, tmp_path, eventually):
    path = tmp_path / "starts"
    with client.pool(tag="b") as pool:
        calls = [(stick, path, "stuck"), *((note, path, x) for x in range(100))]
        stuck, *others = begin_together(pool, calls)
        eventually(lambda: "stuck" in starts(path))
        stuck.cancel()
        assert wait(others, timeout=60).not_done == set()
    assert sorted(starts(path)) == sorted(["stuck", *map(str, range(100))])


def test_ended_calls_do_not_run_again_when_their_worker_is_retired(client, tmp_path, eventually):
    path = tmp_path / "starts"
    with client.pool(tag="b") as pool:
        calls = [(note, path, x) for x in range(60)]
        calls.insert(10, (note, path, "long", 5.0))
        futures = begin_together(pool, calls)
        # Ended calls do not wait for the end of their bundle.
        eventually(lambda: "long" in starts(path))
        wait(futures[:10], timeout=60)
        assert not futures[10].done()
        client.retire_workers(
            client.run_on_scheduler(
                lambda dask_scheduler: [
                    ws.address for ws in dask_scheduler.workers.values() if "b" in ws.resources
                ]
            )
        )
        assert wait(futures, timeout=60).not_done == set()
    found = starts(path)
    assert [found.count(str(x)) for x in range(60)] == [1] * 60
