"""Queued calls move to idle workers of their pool, however long the queues of other pools are."""

import contextlib
import time

import dask
import pytest

HANG_S = 60.0
MANIFEST = """\
version: 1
project: {name: evening}
targets: {local: {provider: local, processes: false}}
components:
  a: {workers: {minimum: 1, maximum: 3}}
  b: {workers: 2}
"""


@pytest.fixture(scope="module")
def session(running_session):
    # Only calls of known length are moved; those of the other pool are the longest.
    lengths = {"held": "1s", "long": "100s"}
    with (
        dask.config.set({"distributed.scheduler.default-task-durations": lengths}),
        running_session(MANIFEST, workers=3) as session,
    ):
        yield session


def wait_for(gate):
    deadline = time.monotonic() + HANG_S
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def held(number, place):
    """Tell that the task has begun, and wait for a file."""
    (place / f"begun-{number}").touch()
    wait_for(place / "gate")
    return number


def long(_number, place):
    wait_for(place / "gate")


def test_idle_workers_of_one_pool_take_its_calls_beside_a_pool_with_longer_queues(
    session, tmp_path, eventually
):
    client, place = session.client, tmp_path
    others = [client.submit(long, i, place, tag="b", pure=False) for i in range(20)]
    calls = [client.submit(held, i, place, tag="a", pure=False) for i in range(6)]
    try:
        # All calls of pool a are on its only worker.
        eventually(lambda: {len(keys) for keys in client.processing().values()} == {6, 10})
        eventually(lambda: len(list(place.glob("begun-*"))) == 1)
        session.cluster.scale("a", 3)
        eventually(lambda: len(list(place.glob("begun-*"))) == 3, "a call on each worker")
    finally:
        (place / "gate").touch()
    assert client.gather(calls) == list(range(6))
    client.gather(others)


def test_an_idle_worker_takes_no_call_of_another_pool(session, tmp_path, eventually):
    client, place = session.client, tmp_path
    session.cluster.scale("a", 3)
    eventually(lambda: client.worker_count("a") == 3)
    others = [client.submit(held, i, place, tag="b", pure=False) for i in range(8)]
    try:
        eventually(lambda: len(list(place.glob("begun-*"))) == 2)
        with contextlib.suppress(TimeoutError):
            others[0].result(timeout=0.5)  # time for several looks
        assert len(list(place.glob("begun-*"))) == 2
    finally:
        (place / "gate").touch()
    assert client.gather(others) == list(range(8))
