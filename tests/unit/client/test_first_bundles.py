"""The first bundles of an executor, before it is known how long its calls take."""

import itertools
import math
import threading

import pytest

from scalable.client import dispatcher as dispatching
from scalable.client.backlog import CallOptions, MappedCalls
from scalable.client.bundle_sizes import AHEAD, SHARES
from scalable.client.dispatcher import FIRST, Dispatcher
from scalable.protocol.messages import dump


class Line:
    """Stands in for the line to the scheduler, with a number of slots."""

    why_closed = "the client is closed"
    client_id, lender = "client", None

    def __init__(self, slots):
        self.slots, self.sent, self.soon = slots, [], []

    def slots_of(self, tag):
        return self.slots

    def follow_slots(self, follower):
        pass

    def code(self):
        return ""

    def interrupt(self, key, number):
        pass

    def call_soon(self, function, *args):
        self.soon.append((function, args))

    def call_later(self, seconds, function):
        pass

    def submit_bundle(self, key, *_, **__):
        self.sent.append(key)

    def forget_bundle(self, key):
        pass

    def report_backlog(self, *_):
        pass

    def run_soon(self):
        """Run what is to run soon; return the largest number of bundles sent in one turn."""
        most = 0
        while self.soon:
            before = len(self.sent)
            function, args = self.soon.pop(0)
            function(*args)
            most = max(most, len(self.sent) - before)
        return most


@pytest.fixture
def offered():
    made = []

    def offer(slots, calls):
        line = Line(slots)
        made.append(Dispatcher(line, CallOptions("work", "a")))
        made[-1].offer(MappedCalls(threading.Condition(), len, [("x",)] * calls))
        line.run_soon()
        return line, made[-1]

    yield offer
    for dispatcher in made:
        dispatcher.close()


def finish(dispatcher, key, seconds=1e-6):
    """Report the outcome of a bundle's only task, and the end of the bundle."""
    dispatcher.outcomes(key, dump((range(1), ["x"], {}, None)), seconds)
    dispatcher.in_memory(key)


def test_few_bundles_are_sent_until_the_length_of_calls_is_known(offered):
    line, dispatcher = offered(5000, 50_000)
    assert len(line.sent) == FIRST
    finish(dispatcher, line.sent[0])
    line.run_soon()
    # Each bundle is a share of what is left.
    assert len(line.sent) <= FIRST + SHARES * (2 + math.log(50_000 / SHARES))
    assert dispatcher._waiting() == 0


def test_long_calls_reach_all_slots_after_some_moments(offered):
    line, dispatcher = offered(1000, 5000)
    moments = 0
    while len(line.sent) < AHEAD * 1000:
        for key in list(line.sent):
            dispatcher.begun(key)
        line.run_soon()
        moments += 1
    assert moments == math.ceil(math.log2(AHEAD * 1000 / FIRST))


def test_no_more_bundles_are_sent_while_the_first_ones_have_not_begun(offered):
    """On a busy machine their answers are late; that says nothing of the length of calls."""
    line, dispatcher = offered(1000, 5000)
    for key in line.sent[: FIRST // 2]:  # the others may wait behind long calls of another client
        dispatcher.begun(key)
    line.run_soon()
    assert len(line.sent) == FIRST
    dispatcher.begun(line.sent[-1])
    line.run_soon()
    assert len(line.sent) == FIRST + 2


def test_a_turn_of_the_event_loop_ends_in_time_and_another_sends_the_rest(offered, monkeypatch):
    monkeypatch.setattr(dispatching, "TURN_S", 0.0)
    line, dispatcher = offered(5000, 5000)
    finish(dispatcher, line.sent[0], 1.0)
    assert line.run_soon() == 1
    assert len(line.sent) == 5000


def test_ends_of_many_bundles_make_one_look_for_calls_to_send(offered):
    line, dispatcher = offered(5000, 50_000)
    for key in list(line.sent):
        finish(dispatcher, key)
    looks = [function for function, _ in line.soon if function == dispatcher._dispatch]
    assert len(looks) == 1


def test_an_iterator_that_never_ends_leaves_other_calls_their_turns(offered):
    line, dispatcher = offered(FIRST, 0)
    endless = MappedCalls(threading.Condition(), len)
    assert endless._add(zip(itertools.repeat("x"), strict=False), 1000, dispatcher.wake)
    others = MappedCalls(threading.Condition(), len, [("y",)] * 3)
    dispatcher.offer(endless)
    dispatcher.offer(others)
    line.run_soon()
    assert (len(line.sent), len(endless), len(others)) == (FIRST, 1000 - FIRST + 3, 0)


def test_few_slots_are_filled_at_once(offered):
    line, dispatcher = offered(FIRST // AHEAD, 5000)
    assert len(line.sent) == FIRST
    for key in list(line.sent):
        dispatcher.begun(key)
    assert line.run_soon() == 0
