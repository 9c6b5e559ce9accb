"""Messages about bundles: their calls are settled, wait again, or are taken back."""

import threading
from types import SimpleNamespace

import pytest
from distributed.scheduler import KilledWorker

from scalable.client.backlog import CallOptions, MappedCalls, SingleCalls
from scalable.client.dispatcher import Dispatcher
from scalable.client.futures import CallFuture
from scalable.errors import NoWorkersError
from scalable.protocol.messages import Pickled, dump
from scalable.protocol.operations import KEPT

LOST = SimpleNamespace(address="tcp://lost", name="lost")


class Line:
    """Stands in for the line to the scheduler."""

    why_closed = "the client is closed"
    client_id, lender, shows_output = "client", None, False

    def __init__(self):
        self.interrupted, self.later, self.sent, self.forgotten = [], [], [], []

    def follow_slots(self, follower):
        pass

    def slots_of(self, tag):
        return {"a": 2}[tag]

    def code(self):
        return ""

    def submit_bundle(self, key, *_, **__):
        self.sent.append(key)

    def interrupt(self, key, number=None):
        self.interrupted.append((key, number))

    def call_later(self, seconds, function):
        self.later.append(function)

    def call_soon(self, function, *args):
        self.later.append((function, *args))

    def forget_bundle(self, key):
        self.forgotten.append(key)


class Sent:
    """Two calls of a function in one bundle."""

    def __init__(self):
        self.line = Line()
        self.dispatcher = Dispatcher(self.line, CallOptions("work", "a"))
        self.calls = MappedCalls(threading.Condition(), len, [("x",), ("yy",)])
        self.dispatcher.backlog.append(self.calls)
        self.key, self.bundle = self.send(self.calls, self.calls.take(2))

    def send(self, pending, numbers):
        self.dispatcher._send(pending, numbers)
        key = self.line.sent[-1]
        return key, self.dispatcher._bundles[key]

    def hear(self, positions, values, kinds=None):
        outcomes = dump((positions, values, kinds or {}, None))
        self.dispatcher.outcomes(self.key, outcomes, 0.1)


@pytest.fixture
def sent():
    made = Sent()
    yield made
    made.dispatcher.close()


def test_a_second_outcome_of_a_call_changes_nothing(sent):
    sent.hear([0], [1])
    sent.hear([0, 1], [7, 2])
    assert sent.calls.collect() == [1, 2]


def test_a_bundle_is_released_when_only_cancelled_calls_are_left(sent):
    pending, key, (first, second) = singles(sent, 2)
    first.cancel()
    sent.dispatcher.cancel(first)
    sent.dispatcher.returned(key, [1])
    assert pending.take(5) == [second]
    assert sent.line.forgotten == [key]


def test_the_call_that_was_running_is_sent_again_with_the_key_of_its_lost_bundle(sent):
    sent.hear([0], [1])
    sent.dispatcher.erred(sent.key, KilledWorker(sent.key, LOST, 0))
    assert sent.calls.resent([2]) == {}
    assert sent.calls.resent([1, 2]) == {"after": sent.key, "again": 1}
    assert sent.calls.resent([1]) == {}


@pytest.mark.parametrize("references", [{}, {"key": "an argument"}])
def test_only_a_refusal_for_lack_of_workers_fails_the_calls_that_wait(sent, references):
    waiting = MappedCalls(threading.Condition(), len, [("x",)])
    sent.dispatcher.backlog.append(waiting)
    sent.bundle.references = references  # else it is the refusal of an argument
    sent.dispatcher.erred(sent.key, NoWorkersError("pool 'a' is degraded"))
    assert len(waiting) == len(references)


def singles(sent, count):
    """Send calls with a future each in one bundle, and return the group, the key and futures."""
    condition = threading.Condition()
    pending = SingleCalls(condition)
    for _ in range(count):
        pending.add(CallFuture(condition, (len, ("x",), {})))
    futures = pending.take(count)
    return pending, sent.send(pending, futures)[0], futures


def test_a_call_that_was_sent_again_is_cancelled_in_its_new_bundle(sent):
    """The old bundle may still run its other tasks."""
    pending, key, (first, second) = singles(sent, 2)
    sent.dispatcher.returned(key, [1])
    assert second.bundle is None
    sent.dispatcher.cancel(second)
    assert sent.line.interrupted == []
    again, _ = sent.send(pending, pending.take(1))
    assert second.bundle == again
    sent.dispatcher.cancel(second)
    assert sent.line.interrupted == [(again, 0)]
    assert first.bundle == key


async def test_a_bundle_lost_while_its_kept_results_arrive_is_not_settled_a_second_time(sent):
    """The tasks are in the backlog again, and another bundle settles them."""
    sent.hear([0, 1], [0, 0], {0: KEPT, 1: KEPT})
    sent.bundle.future = SimpleNamespace(release=lambda: None)

    async def fetch(future):
        sent.dispatcher.lost(sent.key, with_all=False)
        return {0: Pickled(7), 1: Pickled(8)}

    sent.line.fetch = fetch
    await sent.dispatcher._fetch(sent.bundle)
    assert not sent.calls._ready
    assert sent.calls.take(5) == [0, 1]


def test_messages_about_other_bundles_change_nothing(sent):
    sent.dispatcher.outcomes("other", b"", 0.0)
    sent.dispatcher.returned("other", [0])
    sent.dispatcher.begun("other")
    sent.dispatcher.in_memory("other")
    sent.dispatcher.erred("other", ValueError())
    sent.dispatcher.lost("other", with_all=False)
    assert list(sent.dispatcher._bundles) == [sent.key]
    assert (sent.line.later, sent.line.forgotten) == ([], [])
