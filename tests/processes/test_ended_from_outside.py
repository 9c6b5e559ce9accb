"""Workers that tasks, somebody else or scalable itself ended are replaced, without a crash loop."""

import os

import pytest
from distributed.scheduler import KilledWorker

from scalable import ScalableSession

#: Starts that end a pool in these tests, and one more than that.
CRASH_LOOP_STARTS = 2
OFTEN = CRASH_LOOP_STARTS + 1


@pytest.fixture(scope="module", autouse=True)
def few_starts_end_a_pool():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("units", "reconciler"):
            patch.setattr(f"scalable.manager.{module}.CRASH_LOOP_STARTS", CRASH_LOOP_STARTS)
        yield


def inc(x):
    return x + 1


def leave():
    os._exit(3)


def give_up(dask_worker):
    dask_worker.give_up_on_call("no call", "a call that does not end")


@pytest.fixture(scope="module")
def session():
    """One pool of one process."""
    made = ScalableSession.local({"a": 1}, processes=True)
    made.start().wait_for_workers(1, timeout=60)
    yield made
    made.close()


def workers_of(client):
    """Names: a new worker may get the address of one that has left."""
    return {worker["name"] for worker in client.scheduler_info()["workers"].values()}


def new_worker(client, before, eventually):
    (name,) = eventually(lambda: workers_of(client) - before, "the next worker")
    return {name}


def test_a_worker_that_gives_up_on_calls_is_replaced_each_time(session, eventually):
    client, seen = session.client, workers_of(session.client)
    for number in range(OFTEN):
        kept = client.submit(inc, number, tag="a")  # the only worker: its result cannot be moved
        assert kept.result(timeout=60) == number + 1
        client.run(give_up)
        seen |= new_worker(client, seen, eventually)
    assert client.submit(inc, 40, tag="a").result(timeout=60) == 41
    assert session.cluster.pools["a"].reason is None


def test_a_client_may_restart_the_workers_often(session, eventually):
    for _ in range(OFTEN):
        # Dask would wait for a worker that is leaving, too.
        eventually(lambda: len(session.client.scheduler_info()["workers"]) == 1)
        session.client.restart(timeout=60)
    assert session.client.submit(inc, 41, tag="a").result(timeout=60) == 42
    assert session.cluster.pools["a"].reason is None


def test_a_client_may_retire_the_workers_often(session, eventually):
    client, seen = session.client, set()
    for _ in range(OFTEN):
        fresh = new_worker(client, seen, eventually)
        seen |= fresh
        client.retire_workers(names=list(fresh), close_workers=True)
    assert client.submit(inc, 42, tag="a").result(timeout=60) == 43
    assert session.cluster.pools["a"].reason is None


def test_task_that_exits_each_worker_leaves_the_pool_running(session):
    client, before = session.client, session.cluster.pools["a"].lost
    with pytest.raises(KilledWorker, match="exit code 3"):
        client.submit(leave, tag="a").result(timeout=300)
    assert session.cluster.pools["a"].lost - before >= CRASH_LOOP_STARTS
    assert client.submit(inc, 43, tag="a").result(timeout=300) == 44
    assert session.cluster.pools["a"].reason is None
