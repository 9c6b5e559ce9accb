"""Clients of calls: which one a call gets, and what an interrupted wait leaves behind."""

import asyncio
import contextlib
import pickle
import time
from functools import partial

import pytest
from distributed import SchedulerPlugin, get_client

from scalable import ScalableClient

MANIFEST = """\
version: 1
project: {name: %s}
targets:
  local: {provider: local, processes: %s}
components:
  %s: {}
"""


@pytest.fixture(scope="module")
def session(running_session):
    with running_session(MANIFEST % ("clients", "true", "a"), workers=1) as session:
        yield session


def double(x):
    return 2 * x


def sum_of_doubles(where, n):
    with get_client().pool(tag=where) as pool:
        return sum(pool.map(double, range(n))) + get_client().submit(double, n, tag=where).result()


# Interrupted while the client is made -------------------------------------------------------------


def be_slow_to_make_clients(begun, told):
    from scalable.client import client

    share_memory = client.share_memory

    def share_slowly():
        begun.touch()
        while not told.exists():
            time.sleep(0.01)
        share_memory()

    client.share_memory = share_slowly


def test_a_worker_whose_first_nested_call_is_cancelled_at_once_runs_others(
    session, tmp_path, eventually
):
    client, begun, told = session.client, tmp_path / "begun", tmp_path / "told"
    client.run(be_slow_to_make_clients, begun, told)
    first = client.submit(sum_of_doubles, "a", 1, tag="a")
    eventually(begun.exists)
    first.cancel()
    time.sleep(0.1)  # time to interrupt the call
    told.touch()
    assert client.submit(sum_of_doubles, "a", 3, tag="a").result(timeout=60) == 12


class Shout(SchedulerPlugin):
    """Tells all clients of cancelled calls in the moment in which a client connects."""

    def add_client(self, scheduler, client):
        scheduler.loop.add_callback(scheduler.report, {"op": "cancelled-keys", "keys": ["x"]})


def test_a_client_that_connects_while_calls_are_cancelled_is_greeted_first(session):
    scheduler = session.cluster.scheduler
    scheduler.add_plugin(Shout(), name="shout")
    try:
        address, security = session.client.scheduler.address, session.client.security
        with ScalableClient(address, security=security, set_as_default=False) as client:
            assert client.submit(double, 2, tag="a").result(timeout=60) == 4
    finally:
        scheduler.remove_plugin("shout")


def refuse_to_connect_once():
    get_client().close()
    connect = ScalableClient._ensure_connected

    async def refuse(self, *args, **kwargs):
        ScalableClient._ensure_connected = connect
        raise OSError("no connection")

    ScalableClient._ensure_connected = refuse


def test_a_worker_whose_client_could_not_connect_makes_another(session):
    client = session.client
    client.submit(refuse_to_connect_once, tag="a").result(timeout=60)
    assert isinstance(client.submit(sum_of_doubles, "a", 3, tag="a").exception(timeout=60), OSError)
    assert client.submit(sum_of_doubles, "a", 3, tag="a").result(timeout=60) == 12


# Cancelled gathers --------------------------------------------------------------------------------


def steps(most=30):
    return range(most)


def in_event_loop(client, coroutine):
    loop = client.loop.asyncio_loop
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=120)


def test_a_gather_that_is_cancelled_at_any_step_leaves_the_client_whole(session):
    client = session.client
    futures = client.map(double, range(3), tag="a")
    client.gather(futures)

    async def cancel_after(count):
        gathering = asyncio.ensure_future(client.gather(futures, asynchronous=True))
        for _ in range(count):
            await asyncio.sleep(0)
        gathering.cancel()
        return await client.gather(futures, asynchronous=True)

    for count in steps():
        assert in_event_loop(client, cancel_after(count)) == [0, 2, 4]


def test_a_gather_that_is_cancelled_does_not_end_others(session):
    client = session.client
    futures = client.map(double, range(4), tag="a")
    client.gather(futures)

    async def cancel_one_of_two(count):
        one = asyncio.ensure_future(client.gather(futures[:2], asynchronous=True))
        other = asyncio.ensure_future(client.gather(futures[2:], asynchronous=True))
        for _ in range(count):
            await asyncio.sleep(0)
        one.cancel()
        return await other

    for count in steps():
        assert in_event_loop(client, cancel_one_of_two(count)) == [4, 6]


def test_results_that_are_not_waited_for_long_enough_do_not_end_other_waits(session):
    client = session.client
    futures = client.map(double, range(20), tag="a")
    for _ in range(100):
        for future in futures[:3]:
            with pytest.raises(TimeoutError):
                future.result(timeout=0.000001)
        assert client.gather(futures) == list(range(0, 40, 2))


# Several sessions in one process ------------------------------------------------------------------


def test_calls_of_two_sessions_in_one_process_make_calls_in_their_own_cluster(running_session):
    north = running_session(MANIFEST % ("north", "false", "a"), workers=1)
    south = running_session(MANIFEST % ("south", "false", "b"), workers=1)
    with north as one, south as other:
        for tag, client in (("a", one.client), ("b", other.client), ("a", one.client)):
            assert client.submit(sum_of_doubles, tag, 3, tag=tag).result(timeout=30) == 12
            with client.pool(tag=tag) as pool:
                assert pool.submit(sum_of_doubles, tag, 3).result(timeout=30) == 12


# Errors that end event loops or generators --------------------------------------------------------


def fail_with(error):
    raise error


ERRORS = [GeneratorExit(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_call_that_raises_what_ends_a_coroutine_fails(session, error):
    with session.client.pool(tag="a") as pool:
        for submit in (partial(session.client.submit, tag="a"), pool.submit):
            with pytest.raises(RuntimeError, match=rf"the task raised {type(error).__name__}"):
                submit(fail_with, error).result(timeout=30)


# Clients as arguments -----------------------------------------------------------------------------


class Model:
    """An object that keeps the client with which it was made."""

    def __init__(self, client):
        self.client = client

    def double(self, x):
        return self.client.submit(double, x, tag="a").result(timeout=60)


def double_with(client, x):
    return isinstance(client, ScalableClient), client.submit(double, x, tag="a").result(timeout=60)


def double_all_with(client, n):
    return sum(client.pool(tag="a").map(double, range(n)))


@pytest.mark.parametrize("processes", ["true", "false"])
def test_a_client_as_an_argument_is_the_client_of_the_task(running_session, session, processes):
    with contextlib.ExitStack() as stack:
        if processes == "false":
            manifest = MANIFEST % ("clients", "false", "a")
            session = stack.enter_context(running_session(manifest, workers=1))
        client = session.client
        assert client.submit(double_with, client, 2, tag="a").result(60) == (True, 4)
        assert client.submit(double_with, client=client, x=3, tag="a").result(60) == (True, 6)
        assert client.submit(Model(client).double, 4, tag="a").result(60) == 8
        assert client.pool(tag="a").submit(double_with, client, 5).result(60) == (True, 10)
        assert client.submit(double_all_with, client, 3, tag="a").result(60) == 6
        assert client.get({"n": (double_with, client, 6)}, "n", tag="a") == (True, 12)


def test_a_pickled_client_is_the_current_one_where_it_is_loaded(session):
    loaded = pickle.loads(pickle.dumps({"client": session.client}))["client"]
    with session.client.as_current():
        assert loaded.id == session.client.id
        assert pickle.loads(pickle.dumps(loaded)).submit(double, 2, tag="a").result(60) == 4


# Facts about the scheduler ------------------------------------------------------------------------


def test_scheduler_info_has_the_workers_whatever_else_was_asked_meanwhile(session, monkeypatch):
    client, sync = session.client, session.client.sync

    def sync_then_periodic(function, *args, **kwargs):
        answer = sync(function, *args, **kwargs)
        sync(client._update_scheduler_info)  # as Dask's periodic callback does: without workers
        return answer

    monkeypatch.setattr(client, "sync", sync_then_periodic)
    assert len(client.scheduler_info()["workers"]) == 1
