"""Workers are told together of all workers that left in a moment."""

import asyncio
from types import SimpleNamespace

import pytest
from distributed.comm.core import CommClosedError

from scalable.dask_compat import scheduler as scheduler_compat
from scalable.dask_compat.scheduler import TellingScheduler
from scalable.dask_compat.worker import forget_workers
from scalable.protocol.operations import LEFT


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
    scheduler = object.__new__(TellingScheduler)
    scheduler.stream_comms, scheduler._left = streams, {}
    told = {address: {LEFT: True} if stream.ours else {} for address, stream in streams.items()}
    scheduler.workers = {address: SimpleNamespace(extra=told[address]) for address in told}
    scheduler.aliases = {}
    return scheduler


def left(worker):
    return {"op": "remove-worker", "worker": worker, "stimulus_id": f"left-{worker}"}


async def send(scheduler, *gone):
    """Do what Dask does for each worker that has left."""
    for worker in gone:
        for other in scheduler.stream_comms:
            scheduler.worker_send(other, left(worker))
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
