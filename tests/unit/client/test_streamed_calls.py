"""Mapped calls: results that nobody keeps, and iterators that are read while calls run."""

import gc
import itertools
import math
import multiprocessing
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.client.backlog import MappedCalls, Raised, SingleCalls
from scalable.client.bundle_sizes import (
    LARGEST_BUNDLE,
    MOST_WAITING,
    MOST_WAITING_BYTES,
    UNKNOWN_WAITING,
    USUAL_S,
    USUAL_WAITING,
    BundleSizing,
)
from scalable.client.futures import CallFuture


class Value:
    """A result that can be referred to weakly."""


def never():
    return None


def reading(iterator, *, ordered=True, most=(5, 20)):
    calls = MappedCalls(threading.Condition(), abs, ordered=ordered)
    arguments = (zip(iterator, strict=False), lambda: most, never)
    thread = threading.Thread(target=calls.read, args=arguments, daemon=True)
    thread.start()
    return calls, thread


def run(calls, count):
    """Settle calls as their bundles would; return how many there were."""
    done = 0
    while done < count:
        numbers = calls.take(3)
        _, rows, _ = calls.calls(numbers)
        calls.settle(numbers, [abs(*row) for row in rows])
        done += len(numbers)
    return done


@given(
    waiting=st.integers(1, 50),
    untaken=st.integers(1, 50),
    steps=st.lists(st.sampled_from(["send", "take"]), max_size=60),
)
def test_reading_is_never_further_ahead_than_asked_and_always_goes_on(waiting, untaken, steps):
    """With nobody but the test in between, the bounds hold at each element that is read."""
    calls, taken = MappedCalls(threading.Condition(), abs), 0
    rows = zip(itertools.count(), strict=False)
    outcomes = calls.outcomes()
    for step in [*steps, *["send", "take"] * (waiting + untaken)]:
        with calls._condition:
            free = min(waiting - len(calls), untaken - calls._total + taken)
        # Reading waits only while it is near to one of the limits.
        if free >= max(1, math.ceil(min(waiting, untaken) / 4)):
            assert calls._add(rows, calls._room(lambda: (waiting, untaken)), never)
        assert len(calls) <= waiting
        assert calls._total - taken <= untaken
        if step == "send":
            numbers = calls.take(2)
            calls.settle(numbers, numbers)
        elif calls._ready:
            assert next(outcomes) == taken
            taken += 1
    assert calls._total > min(waiting, untaken)
    assert len(calls._arguments) + len(calls._ready) == calls._total - taken


@pytest.fixture
def sleepy(monkeypatch):
    """A reader that waits sleeps until somebody wakes it."""
    monkeypatch.setattr("scalable.client.backlog.INTERRUPTIBLE_S", 1000.0)


@pytest.mark.usefixtures("sleepy")
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_whoever_takes_results_wakes_the_reader(limit, eventually):
    calls, _ = reading(itertools.count(), most=(limit, limit))
    outcomes = calls.outcomes()
    for number in range(20):
        if not calls._ready:
            eventually(lambda: len(calls))
            run(calls, 1)
            eventually(lambda: calls._condition._waiters)  # it sleeps again
        assert next(outcomes) == number
    calls.cancel()


@pytest.mark.usefixtures("sleepy")
def test_whoever_sends_calls_wakes_the_reader(eventually):
    calls, _ = reading(itertools.count(), most=(4, 1000))
    for _ in range(20):
        eventually(lambda: len(calls) == 4)
        calls.take(4)
    calls.cancel()


def test_a_call_that_waits_again_has_its_arguments_and_is_settled_once():
    calls, _ = reading(iter([-1, -2]), most=(2, 2))
    while len(calls) < 2:
        pass
    numbers = calls.take(2)
    calls.settle([1], [2])
    calls.put_back(numbers)
    assert calls.take(5) == [0]
    assert calls.calls([0]) == ([abs], [(-1,)], None)
    calls.settle([0], [1])
    outcomes = calls.outcomes()
    assert [next(outcomes), next(outcomes)] == [1, 2]
    assert (list(calls._ready), calls._arguments) == ([], {})


def test_the_end_of_the_iterator_ends_who_waits_for_another_result(eventually):
    """The iterator ends late, after all results were taken."""
    ends = threading.Event()

    def late():
        yield -1
        ends.wait(30)

    calls, _ = reading(late())
    run(calls, 1)
    found = []
    taking = threading.Thread(target=lambda: found.extend(calls.outcomes()), daemon=True)
    taking.start()
    eventually(lambda: found)
    ends.set()
    taking.join(30)
    assert (found, taking.is_alive()) == ([1], False)


def test_calls_of_an_iterator_wait_in_bounded_number_and_size():
    sizing = BundleSizing()
    assert sizing.lookahead(2) >= 2
    sizing.sent(10, 100)
    assert sizing.lookahead(2) == UNKNOWN_WAITING  # their length is not known
    sizing.observe(1, 1.0)
    assert sizing.lookahead(2) == 2 * USUAL_S  # they keep both slots busy for so long
    sizing.refused()
    assert sizing.lookahead(2) == USUAL_WAITING
    sizing.observe(1, 60.0)
    assert sizing.lookahead(100) == 400  # twice what all slots take
    for _ in range(20):
        sizing.observe(1, 1e-6)
    assert LARGEST_BUNDLE <= sizing.lookahead(2) <= MOST_WAITING
    assert sizing.lookahead(5000) == MOST_WAITING
    sizing.received(1, 1_000_000)
    assert sizing.lookahead(2) == MOST_WAITING_BYTES // 1_000_000
    assert sizing.lookahead(5000) == 5000  # each slot has a call in any case
    for _ in range(30):
        sizing.received(10, 10)
    assert sizing.lookahead(5000) == MOST_WAITING
    sizing.sent(1, 1_000_000)
    assert sizing.lookahead(2) == MOST_WAITING_BYTES // 1_000_000


@pytest.mark.parametrize("ordered", [True, False])
def test_outcomes_that_arrive_early_wait_for_those_before_them(ordered):
    calls = MappedCalls(threading.Condition(), abs, [(n,) for n in range(9)], ordered=ordered)
    error = ValueError("of 3")
    calls.settle(range(6, 9), [6, 7, 8])
    calls.settle([5, 3], [5, None], [None, error])
    calls.settle(range(2), [0, 1])
    calls.settle([4, 2], [4, 2])
    told = [each.error if isinstance(each, Raised) else each for each in calls.outcomes()]
    arrived = [6, 7, 8, 5, error, 0, 1, 4, 2]
    assert told == ([0, 1, 2, error, 4, 5, 6, 7, 8] if ordered else arrived)


def test_an_error_is_the_end_where_it_is_raised():
    calls = MappedCalls(threading.Condition(), abs, [(0,), (1,), (2,)])
    calls.settle(range(3), [0, None, 2], [None, ValueError("of 1"), None])
    results = calls.outcomes(raises=True)
    assert next(results) == 0
    with pytest.raises(ValueError, match="of 1"):
        next(results)
    assert calls.cancelled
    assert list(results) == []


@pytest.mark.parametrize("back", [([5, 6], [1, 2]), ([1, 2], [5, 6])])
def test_calls_that_were_put_back_go_in_their_order_before_the_others(back):
    many = MappedCalls(threading.Condition(), abs, [(n,) for n in range(10)])
    many.take(8)
    single = SingleCalls(threading.Condition())
    futures = [CallFuture(single._condition, (abs, (n,), {})) for n in range(10)]
    for future in futures:
        single.add(future)
    single.take(8)
    for numbers in back:
        many.put_back(numbers)
        single.put_back([futures[n] for n in numbers])
    assert (len(many), len(single)) == (6, 6)
    assert single.position(futures[5]) == 2
    assert many.take(5) == [1, 2, 5, 6, 8]
    assert single.take(5) == [futures[n] for n in (1, 2, 5, 6, 8)]


def test_all_calls_are_cancelled_also_those_that_were_put_back():
    single = SingleCalls(threading.Condition())
    futures = [CallFuture(single._condition, (abs, (n,), {})) for n in range(3)]
    for future in futures:
        single.add(future)
    single.put_back(single.take(2))
    single.cancel_all()
    assert all(future.cancelled() for future in futures)


def test_a_result_is_not_kept_after_it_was_taken():
    calls = MappedCalls(threading.Condition(), abs, [(1,), (2,)])
    calls.settle(calls.take(2), [Value(), Value()])
    outcomes = calls.outcomes()
    for _ in range(2):
        reference = weakref.ref(next(outcomes))
        gc.collect()
        assert reference() is None


def test_a_late_result_is_a_timeout_of_multiprocessing_too():
    future = CallFuture(threading.Condition())
    with pytest.raises(multiprocessing.TimeoutError):
        future.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
