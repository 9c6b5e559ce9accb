"""What a worker tells of tasks that have ended: positions, outcomes, and CPU times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.protocol.messages import load
from scalable.protocol.operations import ERROR
from scalable.worker.outcomes import EndedCalls

seconds = st.floats(1e-7, 10)
calls = st.lists(st.tuples(seconds, st.none() | st.floats(0, 1)), min_size=1, max_size=30)


def add(ended, number, value, began, duration):
    ended.values.append(value)
    ended.began.append(began)
    ended.durations.append(duration)
    ended.numbers.append(number)


def ended(told, numbers=None):
    """Return tasks that follow each other, from durations and shares of CPU that were read."""
    at, unread, made = 100.0, 0.0, EndedCalls()
    for number, (duration, share) in zip(numbers or range(len(told)), told, strict=True):
        unread += duration
        if share is not None:
            made.cpu_read[number] = share * unread
        add(made, number, number, at, duration)
        at, unread = at + duration, unread if share is None else 0.0
    return made


@given(calls)
def test_what_was_read_is_shared_by_the_calls_before_it(told):
    found = ended(told)
    shared = found.cpu_s()
    assert len(shared) == len(told)
    first = 0
    for last, (_, share) in enumerate(told):
        if share is not None:
            part = found.durations[first : last + 1]
            assert sum(shared[first : last + 1]) == pytest.approx(share * sum(part), abs=1e-6)
            first = last + 1
    assert shared[first:] == found.durations[first:]
    assert all(0 <= cpu <= d for cpu, d in zip(shared, found.durations, strict=True))


def test_a_long_call_after_short_ones_has_its_own_cpu_time():
    found = ended([(1e-5, None), (1e-4, 1.0), (2.0, 0.25)])
    assert found.cpu_s() == pytest.approx([1e-5, 1e-4, 0.5])


@given(st.sets(st.integers(0, 50), min_size=1))
def test_positions_are_told_as_they_are(numbers):
    told = sorted(numbers)
    found = ended([(1e-3, None)] * len(told), told)
    positions, values, kinds, measured = load(found.message())
    assert list(positions) == values == told
    assert kinds == {}
    assert measured is None


def test_outcomes_that_are_not_plain_are_named():
    found = EndedCalls()
    add(found, 3, 1, 0.0, 1.0)
    found.kinds[5] = ERROR
    add(found, 5, b"x", 1.0, 1.0)
    positions, values, kinds, _ = load(found.message("measured"))
    assert (list(positions), values, kinds) == ([3, 5], [1, b"x"], {5: ERROR})


def test_what_is_not_complete_stays():
    found = ended([(1e-3, 1.0)] * 2)
    found.values.append("the position follows")
    found.kinds[2] = ERROR
    taken = found.take()
    assert (taken.numbers, taken.kinds, list(taken.cpu_read)) == ([0, 1], {}, [0, 1])
    assert (found.numbers, found.values) == ([], ["the position follows"])
    assert found.kinds == {2: ERROR}
    assert found.take() is None
