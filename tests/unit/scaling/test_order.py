"""Ranks of calls, on graphs small enough to follow by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.order import Rank, longest_paths, ranks, remaining_paths
from scalable.scaling.task_model import Expectation, Kind, Sample, TaskModel

SHORT, LONG, NEW = Kind("run", "short"), Kind("run", "long"), Kind("run", "new")
KNOWN = {("run", "short"): Expectation(1.0), ("run", "long"): Expectation(10.0)}


def test_a_rank_is_the_longest_remaining_path():
    """0 -> 1 -> 3, 0 -> 2 -> 3, and 4 alone."""
    calls = {0: (SHORT, ()), 1: (LONG, [0]), 2: (SHORT, [0]), 3: (SHORT, [1, 2]), 4: (LONG, [])}
    found = ranks(calls, TaskModel(KNOWN))
    assert list(found) == [0, 1, 2, 3, 4]
    assert [rank.path_s for rank in found.values()] == [12.0, 11.0, 2.0, 1.0, 10.0]
    assert not any(rank.sample for rank in found.values())


def test_a_chain_of_any_length_needs_no_recursion():
    calls = {i: (SHORT, (i - 1,)) for i in range(50_000)}
    found = remaining_paths(calls, TaskModel(KNOWN))
    assert (found[0], found[49_999]) == (50_000.0, 1.0)


def test_ended_calls_hold_nothing_back_and_circles_end():
    calls = {1: (SHORT, [0]), 2: (LONG, [3]), 3: (SHORT, [2]), 4: (SHORT, [3])}
    assert remaining_paths(calls, TaskModel(KNOWN)) == {
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
    found = remaining_paths(calls, TaskModel(KNOWN))
    assert (found[0], found[99], Counted.looks) == (11.0, 10.0, 1)


def test_the_first_calls_of_an_unknown_task_are_samples_until_one_has_ended():
    calls = {0: (LONG, ()), 1: (NEW, [0]), 2: (NEW, ()), 3: (NEW, ()), 4: (NEW, ())}
    model = TaskModel(KNOWN)
    found = ranks(calls, model)
    assert [call for call, rank in found.items() if rank.sample] == [2, 3]
    assert found[4] < found[0] < found[2]  # a sample comes before the longest path
    one = ranks({0: (LONG, ()), 1: (NEW, [0])}, model)
    assert one[1].sample  # it runs early once it is ready
    model.observe(Sample(NEW, 2.0))
    assert not any(rank.sample for rank in ranks(calls, model).values())


def test_equal_calls_have_equal_ranks():
    found = ranks(dict.fromkeys(range(5), (SHORT, ())), TaskModel(KNOWN))
    assert set(found.values()) == {Rank(sample=False, path_s=1.0)}


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
    model = TaskModel(KNOWN)
    found = longest_paths({key: model.mean_s(kinds[key]) for key in keys}, waits.__getitem__)
    assert found == remaining_paths({key: (kinds[key], waits[key]) for key in keys}, model)
