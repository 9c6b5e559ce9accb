"""When calls of a graph become ready, on graphs small enough to follow by hand."""

from __future__ import annotations

import pytest

from scalable.scaling.readiness import GraphView, Slots, coming, grouped
from scalable.scaling.task_model import Expectation, Kind, TaskModel

A, B = Kind("small", "a"), Kind("big", "b")
MODEL = TaskModel({("small", "a"): Expectation(10.0), ("big", "b"): Expectation(100.0)})


def test_a_call_is_ready_when_the_last_that_it_waits_for_has_ended() -> None:
    graph = GraphView({1: (A, 4.0)}, {2: A}, {3: (B, [1, 2]), 4: (A, [3])})
    found = coming(graph, MODEL)
    assert found == {"big": [(10.0, B, 1)], "small": [(110.0, A, 1)]}


def test_queued_calls_wait_for_slots() -> None:
    """Two slots, one worker on its way for 5 s, four calls of 10 s: the last ends at 30."""
    queued = dict.fromkeys(range(4), A)
    graph = GraphView(queued=queued, blocked={9: (B, [3])})
    [(ready_s, _, _)] = coming(graph, MODEL, {"small": Slots(2, 5.0)})["big"]
    assert ready_s == pytest.approx(5 + 30 / 2 + 10)


def test_calls_of_a_kind_that_become_ready_together_are_one_entry() -> None:
    graph = GraphView({1: (A, 0.0), 2: (A, 0.0)}, {}, {3: (B, [1]), 4: (B, [2]), 5: (B, [3, 4])})
    assert coming(graph, MODEL)["big"] == [(10.0, B, 2), (110.0, B, 1)]


def test_calls_behind_an_unknown_length_are_ready_when_it_has_passed() -> None:
    unknown = Kind("small", "new")
    length = MODEL.mean_s(unknown)
    queued = GraphView({}, {1: unknown}, {3: (A, [1])})
    assert coming(queued, MODEL) == {"small": [(length, A, 1)]}


def test_ended_calls_hold_nothing_back() -> None:
    assert coming(GraphView(blocked={2: (B, [1])}), MODEL) == {"big": [(0.0, B, 1)]}


def test_no_more_than_the_limit_is_looked_at() -> None:
    chain = {i: (A, [i - 1]) for i in range(1, 50)}
    found = coming(GraphView({0: (A, 0.0)}, {}, chain), MODEL, limit=7)
    assert sum(count for _, _, count in found["small"]) == 7


def test_a_circle_is_never_ready() -> None:
    assert coming(GraphView(blocked={1: (A, [2]), 2: (A, [1])}), MODEL) == {}


def test_groups_that_the_caller_keeps_give_the_same():
    """Fan-out, join, chains and tasks that wait for calls of every state."""
    queued = dict.fromkeys(range(5, 10), A)
    running = {i: (A if i else B, float(i)) for i in range(5)}
    stage = tuple(range(10))
    blocked = dict.fromkeys(range(10, 20), (B, stage))
    blocked |= {i: (A, (i - 10, i - 20, 99)) for i in range(20, 30)}
    blocked |= {i: (A, (i - 1, 3)) for i in range(30, 60)}
    _, dependents = grouped(blocked, {*running, *queued})
    places = {"small": Slots(2, 5.0)}
    found = coming(GraphView(running, queued, blocked), MODEL, places)
    assert sum(count for entries in found.values() for _, _, count in entries) == len(blocked)
    assert coming(GraphView(running, queued, blocked, dependents), MODEL, places) == found
    less = coming(GraphView(running, queued, blocked), MODEL, places, 30)
    assert less != found
    assert coming(GraphView(running, queued, blocked, dependents), MODEL, places, 30) == less


def test_calls_of_a_group_that_are_not_known_yet_are_left_out():
    _, dependents = grouped({2: (A, (1,)), 3: (A, (2,))}, {1})
    graph = GraphView({1: (A, 4.0)}, {}, {3: (A, (2,))}, dependents)
    assert coming(graph, MODEL) == {}
