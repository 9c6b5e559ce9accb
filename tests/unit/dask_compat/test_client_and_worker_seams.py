"""Waits of Dask's client and threads of tasks are recognized; messages to ended peers are dropped."""

import threading
from types import SimpleNamespace

import pytest
from distributed import Client, Future, wait
from distributed import client as dask_client
from distributed.batched import BatchedSend
from distributed.worker import thread_state

from scalable.dask_compat import client, scheduler, worker


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
