"""Ranks of calls, on graphs small enough to follow by hand."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.order import Length, expected_s, longest_paths, rank, remaining_paths
from scalable.scaling.task_model import Expectation, Kind, Sample, TaskModel

SHORT, LONG, NEW = Kind("run", "short"), Kind("run", "long"), Kind("run", "new")
KNOWN = {("run", "short"): Expectation(1.0), ("run", "long"): Expectation(10.0)}


def lengths(model=None):
    model = model or TaskModel(KNOWN)
    return {kind: Length(kind, model) for kind in (SHORT, LONG, NEW)}


def test_a_path_is_the_longest_one_that_remains():
    """0 -> 1 -> 3, 0 -> 2 -> 3, and 4 alone."""
    calls = {0: (SHORT, ()), 1: (LONG, [0]), 2: (SHORT, [0]), 3: (SHORT, [1, 2]), 4: (LONG, [])}
    found = remaining_paths(calls, lengths())
    assert found == {0: 12.0, 1: 11.0, 2: 2.0, 3: 1.0, 4: 10.0}
    assert list(found) == [0, 1, 2, 3, 4]


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_clearly_longer_path_outranks_any_number_of_waiting_calls(one, other, few, many):
    shorter, longer = sorted((one, other))
    assert math.floor(rank(shorter, few)) <= math.floor(rank(longer, many))
    if shorter > 1e-3 and longer > 1.1 * shorter:
        assert rank(shorter, few) < rank(longer, many)


@given(st.floats(0, 1e9), st.integers(0, 10**4), st.integers(1, 10**4))
def test_of_equal_paths_the_one_that_more_calls_wait_for_has_the_larger_rank(path_s, few, more):
    assert rank(path_s, few) < rank(path_s, few + more)


def test_nearly_equal_paths_have_equal_ranks():
    assert rank(100.0, 3) == rank(102.0, 3)


def test_a_chain_of_any_length_needs_no_recursion():
    calls = {i: (SHORT, (i - 1,)) for i in range(50_000)}
    found = remaining_paths(calls, lengths())
    assert (found[0], found[49_999]) == (50_000.0, 1.0)


def test_ended_calls_hold_nothing_back_and_circles_end():
    calls = {1: (SHORT, [0]), 2: (LONG, [3]), 3: (SHORT, [2]), 4: (SHORT, [3])}
    assert remaining_paths(calls, lengths()) == {
        1: 1.0,
        2: 10.0,
        3: 1.0,
        4: 1.0,
    }


class Counted(list):
    """How often it was gone through."""

    looks = 0

    def __iter__(self):
        Counted.looks += 1
        return super().__iter__()


def test_a_list_that_many_calls_wait_for_is_gone_through_once():
    before = Counted(range(50))
    calls = dict.fromkeys(range(50), (SHORT, ())) | {50 + i: (LONG, before) for i in range(50)}
    found = remaining_paths(calls, lengths())
    assert (found[0], found[99], Counted.looks) == (11.0, 10.0, 1)


def test_an_unknown_task_counts_more_than_the_typical_one_of_its_component_until_a_call_ended():
    model = TaskModel(KNOWN)
    for seconds in (1.0, 100.0):
        model.observe(Sample(Kind("run", f"other-{seconds}"), seconds))
    # The geometric mean of 1, 100 and the 10 s that are assumed without any call.
    assert expected_s(NEW, model) > 10.0 * 2
    assert math.isclose(expected_s(NEW, model), expected_s(Kind("elsewhere", "new"), model))
    model.observe(Sample(NEW, 10.0))
    assert math.isclose(expected_s(NEW, model), 10.0)


def test_a_length_is_the_mean_of_measured_calls_and_of_what_was_assumed_before():
    model = TaskModel(KNOWN, history=[Sample(NEW, 4.0)] * 100)
    assert [expected_s(kind, model) for kind in (SHORT, LONG, NEW)] == [1.0, 10.0, 4.0]
    for _ in range(3):
        model.observe(Sample(SHORT, 5.0))
        model.observe(Sample(NEW, 27.0))
    assert expected_s(SHORT, model) == (1 + 15) / 4
    assert math.isclose(expected_s(NEW, model), (20 * 4 + 3 * 27) / 23)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_a_length_is_within_what_was_measured_and_stated(measured):
    model = TaskModel(KNOWN)
    for seconds in measured:
        model.observe(Sample(SHORT, seconds))
    known = [*measured, 1.0]
    assert min(known) * (1 - 1e-9) <= expected_s(SHORT, model) <= max(known) * (1 + 1e-9)


def test_a_length_stays_until_it_is_read_and_tells_when_it_has_changed():
    model = TaskModel(KNOWN)
    length = Length(SHORT, model)
    told = []
    for seconds in (1.0, 1.0, 9.0, 9.0):
        model.observe(Sample(SHORT, seconds))
        told.append(length.ended(model))
    assert told == [False, False, False, True]
    assert length.seconds == 1.0
    length.read(model)
    assert length.seconds == (1 + 20) / 5


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 14))), max_size=12), st.randoms())
def test_the_longest_paths_are_the_remaining_paths_in_any_order(drawn, random):
    """With and without circles, and with calls that have ended."""
    kinds = {i: LONG if long else SHORT for i, (long, _) in enumerate(drawn)}
    acyclic = random.random() < 0.5
    waits = {
        i: [other for other in others if other < i or not acyclic]
        for i, (_, others) in enumerate(drawn)
    }
    keys = list(kinds)
    if random.random() < 0.5:
        random.shuffle(keys)
    known = lengths()
    found = longest_paths({key: known[kinds[key]].seconds for key in keys}, waits.__getitem__)
    assert found == remaining_paths({key: (kinds[key], waits[key]) for key in keys}, known)
