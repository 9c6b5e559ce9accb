"""Messages about bundles: their calls are settled, wait again, or are taken back."""

import logging
import threading
from types import SimpleNamespace

import pytest
from distributed.scheduler import KilledWorker

from scalable.client.calls.backlog import SingleCalls
from scalable.client.calls.bundle_size import BundleSizing
from scalable.client.calls.futures import CallFuture
from scalable.client.calls.in_flight import LOSSES, BundlesInFlight
from scalable.client.calls.mapped_calls import MappedCalls
from scalable.client.calls.options import CallOptions
from scalable.client.calls.sent_bundle import SentBundle
from scalable.errors import NoWorkersError
from scalable.protocol.bundles import EVERY, KEPT
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
        numbers = self.calls.take(2)
        self.bundle = SentBundle("key", self.calls, numbers, {0, 1}, 0.0, suspected=False)
        self.in_flight.add(self.bundle)

    def put_back(self, pending, numbers):
        self.waiting.extend(numbers)
        pending.put_back(numbers)

    def dispatch(self):
        self.dispatched += 1

    def hear(self, positions, values, kinds=None, *, over=True):
        outcomes = dump((positions, values, kinds or {}, None))
        self.in_flight.outcomes("key", outcomes, 0.1, over=over)


@pytest.fixture
def sent():
    return Sent()


def test_outcomes_settle_calls_and_make_room(sent):
    sent.hear([0, 1], [1, 2])
    assert sent.calls.collect() == [1, 2]
    assert (len(sent.in_flight), sent.in_flight.idle, sent.dispatched) == (0, False, 1)
    sent.in_flight.in_memory("key")
    assert sent.in_flight.idle
    assert sent.line.forgotten == ["key"]


def test_calls_without_an_outcome_wait_again(sent):
    sent.hear([0], [1])
    assert sent.waiting == [1]
    assert len(sent.calls) == 1


def test_a_second_outcome_of_a_call_changes_nothing(sent):
    sent.hear([0], [1], over=False)
    sent.hear([0, 1], [7, 2])
    assert sent.calls.collect() == [1, 2]


def test_a_kept_result_is_fetched_when_the_task_ends(sent):
    sent.hear([0, 1], [None, 2], {0: KEPT})
    assert not sent.calls.is_over(0)
    sent.in_flight.in_memory("key")
    ((function, bundle),) = sent.line.later
    assert (function.__name__, bundle) == ("_fetch", sent.bundle)


def test_kept_results_that_are_lost_are_computed_again(sent):
    sent.hear([0, 1], [None, 2], {0: KEPT})
    sent.in_flight.lost("key")
    assert sent.waiting == [0]


def test_given_back_calls_wait_again(sent):
    sent.in_flight.returned("key", [1])
    assert (sent.waiting, sent.dispatched, sent.bundle.open) == ([1], 1, {0})


def test_a_bundle_that_is_given_back_whole_is_released(sent):
    sent.in_flight.returned("key", EVERY)
    assert sent.waiting == [0, 1]
    assert sent.in_flight.idle


def test_a_bundle_is_released_when_only_cancelled_calls_are_left(sent):
    first, second = singles(sent, 2)
    first.cancel()
    sent.in_flight.cancel(first)
    sent.in_flight.returned("singles", [1])
    assert sent.waiting == [second]
    assert sent.line.forgotten == ["singles"]


def test_a_call_beyond_its_limit_fails_and_the_others_go_on():
    sent = Sent(timeout_s=1.0)
    sent.in_flight.timed_out("key", 0)
    sent.hear([1], [2])
    with pytest.raises(TimeoutError, match=r"len\(\) ran for longer than 1 s"):
        sent.calls.collect()


def test_a_call_whose_workers_are_lost_is_given_up(sent):
    for loss in range(LOSSES):
        sent.in_flight.erred("key", KilledWorker("key", LOST, 0))
        assert sent.in_flight.idle
        assert sent.calls.is_over(0) == (loss == LOSSES - 1)
        bundle = SentBundle("key", sent.calls, [0], {0}, 0.0, suspected=True, begun=True)
        sent.in_flight.add(bundle)
    ((position, kind, _, arguments),) = sent.line.given_up
    assert (position, kind) == (0, "KilledWorker")
    assert arguments == "('x')"


def test_the_call_that_was_running_is_sent_again_with_the_key_of_its_lost_bundle(sent):
    sent.hear([0], [1], over=False)
    sent.in_flight.erred("key", KilledWorker("key", LOST, 0))
    assert sent.in_flight.sent_before.take(sent.calls, [2]) == {}
    assert sent.in_flight.sent_before.take(sent.calls, [1, 2]) == {"after": "key", "again": 1}
    assert sent.in_flight.sent_before.take(sent.calls, [1]) == {}


def test_another_failure_fails_the_calls_that_are_left(sent):
    sent.hear([0], [1], over=False)
    sent.in_flight.erred("key", ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        sent.calls.collect()
    assert sent.waiting == []


def test_a_refusal_for_lack_of_workers_fails_the_calls_that_wait(sent):
    refusal = NoWorkersError("pool 'a' is degraded")
    sent.in_flight.erred("key", refusal)
    assert sent.refused == [refusal]


def test_a_refusal_of_an_argument_fails_only_its_calls(sent):
    sent.bundle.refusal_counts = False
    sent.in_flight.erred("key", NoWorkersError("pool 'b' is degraded"))
    assert sent.refused == []


def singles(sent, count, key="singles"):
    """Send calls with a future each in one bundle, and return the futures."""
    condition = threading.Condition()
    pending = SingleCalls(condition)
    for _ in range(count):
        pending.add(CallFuture(condition, (len, ("x",), {})))
    futures = pending.take(count)
    sent.in_flight.add(bundle_of(key, pending, futures))
    return futures


def bundle_of(key, pending, numbers):
    return SentBundle(key, pending, numbers, set(range(len(numbers))), 0.0, suspected=False)


def test_a_cancelled_call_is_interrupted(sent):
    first, second = singles(sent, 2)
    for future in (second, first):
        future.cancel()
        sent.in_flight.cancel(future)
    assert sent.line.interrupted == [("singles", 1), ("singles", 0)]
    assert sent.line.forgotten == ["singles"]
    assert sent.waiting == []


def test_a_call_that_was_sent_again_is_cancelled_in_its_new_bundle(sent):
    """The old bundle may still run its other calls."""
    first, second = singles(sent, 2)
    pending = sent.in_flight._bundles["singles"].pending
    sent.in_flight.returned("singles", [1])
    assert sent.in_flight.bundle_of(second) is None
    second.cancel()
    sent.in_flight.cancel(second)
    assert sent.line.interrupted == []
    sent.in_flight.add(bundle_of("again", pending, [second]))
    assert sent.in_flight.bundle_of(second) == "again"
    sent.in_flight.cancel(second)
    assert sent.line.interrupted == [("again", 0)]
    assert sent.in_flight.bundle_of(first) == "singles"


class Looked(list):
    """Calls of a bundle that count how often all of them are looked at."""

    looked = 0

    def __iter__(self):
        self.looked += 1
        return super().__iter__()

    def index(self, *_):
        raise AssertionError("a call was searched for")

    __contains__ = index


def test_calls_are_cancelled_without_a_look_at_the_other_bundles(sent):
    class Bundles(dict):
        def __iter__(self):
            raise AssertionError("all bundles were looked at")

        values = items = __iter__

    futures = singles(sent, 50)
    bundle = sent.in_flight._bundles["singles"]
    bundle.numbers = Looked(bundle.numbers)
    others = Bundles(sent.in_flight._bundles)
    sent.in_flight._bundles = others
    for future in futures[1:]:
        sent.in_flight.cancel(future)
    assert len(sent.line.interrupted) == 49
    assert bundle.numbers.looked == 1
    assert bundle.open == {0}


def test_a_call_that_was_not_sent_is_not_interrupted(sent):
    sent.in_flight.cancel(CallFuture(threading.Condition(), (len, ("x",), {})))
    assert sent.line.interrupted == []


def test_calls_of_a_cancelled_map_are_taken_back_unless_they_run(sent):
    sent.in_flight.withdraw_calls_of(MappedCalls(threading.Condition(), len, []))
    assert sent.line.interrupted == []
    sent.in_flight.withdraw_calls_of(sent.calls)
    assert sent.line.interrupted == [("key", EVERY)]
    sent.in_flight.begun("key")
    sent.in_flight.withdraw_calls_of(sent.calls)
    assert sent.line.interrupted == [("key", EVERY)]


def test_messages_about_other_bundles_change_nothing(sent):
    sent.in_flight.outcomes("other", b"", 0.0, over=True)
    sent.in_flight.returned("other", [0])
    sent.in_flight.timed_out("other", 0)
    sent.in_flight.begun("other")
    sent.in_flight.in_memory("other")
    sent.in_flight.erred("other", ValueError())
    sent.in_flight.lost("other")
    assert (len(sent.in_flight), sent.dispatched, sent.line.forgotten) == (1, 0, [])


def test_decisions_are_logged(sent, caplog):
    caplog.set_level(logging.DEBUG, "scalable.client")
    (future, _) = singles(sent, 2)
    sent.in_flight.begun("singles")
    sent.in_flight.returned("singles", [1])
    sent.in_flight.cancel(future)
    assert [record.getMessage() for record in caplog.records][:3] == [
        "bundle singles has begun",
        "bundle singles takes long and gives back 1 calls",
        "call 0 of bundle singles is cancelled",
    ]


def test_a_closed_client_fails_the_calls(sent):
    sent.in_flight.close(RuntimeError("closed"))
    with pytest.raises(RuntimeError, match="closed"):
        sent.calls.collect()


def test_cancelling_all_cancels_futures_and_interrupts_the_calls_of_a_map(sent):
    futures = singles(sent, 2)
    sent.in_flight.cancel_all()
    assert all(future.cancelled() for future in futures)
    assert sent.line.interrupted == [("key", 0), ("key", 1)]
