"""Messages about bundles: their calls are settled, wait again, or are taken back."""

import threading
from types import SimpleNamespace

import pytest
from distributed.scheduler import KilledWorker

from scalable.client.backlog import CallOptions, MappedCalls, SentBundle, SingleCalls
from scalable.client.futures import CallFuture
from scalable.client.in_flight import BundlesInFlight, BundleSizing
from scalable.errors import NoWorkersError
from scalable.protocol.messages import dump

LOST = SimpleNamespace(address="tcp://lost", name="lost")


class Line:
    """Stands in for the line to the scheduler."""

    why_closed = "the client is closed"

    def __init__(self):
        self.interrupted, self.later, self.forgotten = [], [], []
        self.given_up = []

    def slots_of(self, tag):
        return {"a": 2}[tag]

    def interrupt(self, key, number=None):
        self.interrupted.append((key, number))

    def call_later(self, seconds, function):
        self.later.append(function)

    def call_soon(self, function, *args):
        self.later.append((function, *args))

    def explain_losses(self, errors, key, then):
        then(errors)

    def tell_given_up(self, key, calls):
        self.given_up += calls

    def forget_bundle(self, key):
        self.forgotten.append(key)


class Sent:
    """Two calls of a function in one bundle."""

    def __init__(self, timeout_s=None):
        self.line, self.waiting, self.dispatched, self.refused = Line(), [], 0, []
        options = CallOptions("work", "a", timeout_s=timeout_s)
        self.in_flight = BundlesInFlight(
            self.line, options, BundleSizing(), self.put_back, self.dispatch, self.refused.append
        )
        self.calls = MappedCalls(threading.Condition(), len, [("x",), ("yy",)])
        self.bundle = SentBundle("key", self.calls, self.calls.take(2))
        self.in_flight.add(self.bundle)

    def put_back(self, pending, numbers):
        self.waiting.extend(numbers)
        pending.put_back(numbers)

    def dispatch(self):
        self.dispatched += 1

    def hear(self, positions, values, kinds=None):
        outcomes = dump((positions, values, kinds or {}, None))
        self.in_flight.outcomes("key", outcomes, 0.1)


@pytest.fixture
def sent():
    return Sent()


def test_a_second_outcome_of_a_call_changes_nothing(sent):
    sent.hear([0], [1])
    sent.hear([0, 1], [7, 2])
    assert sent.calls.collect() == [1, 2]


def test_a_bundle_is_released_when_only_cancelled_calls_are_left(sent):
    first, second = singles(sent, 2)
    first.cancel()
    sent.in_flight.cancel(first)
    sent.in_flight.returned("singles", [1])
    assert sent.waiting == [second]
    assert sent.line.forgotten == ["singles"]


def test_the_call_that_was_running_is_sent_again_with_the_key_of_its_lost_bundle(sent):
    sent.hear([0], [1])
    sent.in_flight.erred("key", KilledWorker("key", LOST, 0))
    assert sent.calls.resent([2]) == {}
    assert sent.calls.resent([1, 2]) == {"after": "key", "again": 1}
    assert sent.calls.resent([1]) == {}


def test_a_refusal_for_lack_of_workers_fails_the_calls_that_wait(sent):
    refusal = NoWorkersError("pool 'a' is degraded")
    sent.in_flight.erred("key", refusal)
    assert sent.refused == [refusal]


def test_a_refusal_of_an_argument_fails_only_its_calls(sent):
    sent.bundle.references = ["an argument"]
    sent.in_flight.erred("key", NoWorkersError("pool 'b' is degraded"))
    assert sent.refused == []


def singles(sent, count, key="singles"):
    """Send calls with a future each in one bundle, and return the futures."""
    condition = threading.Condition()
    pending = SingleCalls(condition)
    for _ in range(count):
        pending.add(CallFuture(condition, (len, ("x",), {})))
    futures = pending.take(count)
    sent.in_flight.add(SentBundle(key, pending, futures))
    return futures


def test_a_call_that_was_sent_again_is_cancelled_in_its_new_bundle(sent):
    """The old bundle may still run its other tasks."""
    first, second = singles(sent, 2)
    pending = sent.in_flight._bundles["singles"].pending
    sent.in_flight.returned("singles", [1])
    assert sent.in_flight.bundle_of(second) is None
    second.cancel()
    sent.in_flight.cancel(second)
    assert sent.line.interrupted == []
    sent.in_flight.add(SentBundle("again", pending, [second]))
    assert sent.in_flight.bundle_of(second) == "again"
    sent.in_flight.cancel(second)
    assert sent.line.interrupted == [("again", 0)]
    assert sent.in_flight.bundle_of(first) == "singles"


def test_messages_about_other_bundles_change_nothing(sent):
    sent.in_flight.outcomes("other", b"", 0.0)
    sent.in_flight.returned("other", [0])
    sent.in_flight.timed_out("other", 0)
    sent.in_flight.begun("other")
    sent.in_flight.in_memory("other")
    sent.in_flight.erred("other", ValueError())
    sent.in_flight.lost("other")
    assert (len(sent.in_flight), sent.dispatched, sent.line.forgotten) == (1, 0, [])
