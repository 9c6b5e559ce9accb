"""Order in which the ready calls of a graph run: the longest remaining path first. No I/O.

The remaining path of a call is the call and the calls behind it, one after the other. Its length is
the upward rank of HEFT (Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity
task scheduling for heterogeneous computing") without transfers, and the level of Hu (1961). A list
schedule in this order keeps calls that all later work waits for from running last.

The lengths of calls come from the task model. The first calls of a task of which nothing is known
run early, so that the ranks before them become right soon.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from scalable.scaling.task_model import Kind, TaskModel

#: Number of calls of each unknown task that run early.
SAMPLES = 2
#: Relative change of a kind's mean running time after which ranks are worth computing again.
CHANGED = 0.25

Id = TypeVar("Id", bound=Hashable)


class Rank(NamedTuple):
    """Rank of a call; of two ready calls the one with the larger rank runs first.

    Attributes
    ----------
    sample
        Whether the call is one of the first of a task of which nothing is known.
    path_s
        Seconds of the longest path from the begin of the call to the end of the graph.
    """

    sample: bool
    path_s: float


def ranks(
    calls: Mapping[Id, tuple[Kind, Iterable[Id]]], model: TaskModel, samples: int = SAMPLES
) -> dict[Id, Rank]:
    """Return the rank of each call of a graph that has not ended.

    Calls with equal ranks should run in the order of their submission. The time is proportional to
    the number of calls and dependencies; calls that wait for the same list object count once.

    Parameters
    ----------
    calls
        Id -> kind of the call, and ids of the calls that it waits for, in the order of submission.
        Ids without an entry count as ended calls. Running calls count as samples.
    model
        Model of the running times.
    samples
        Number of calls of each unknown task that run early.
    """
    unknown = {kind for kind in {kind for kind, _ in calls.values()} if not model.knows(kind)}
    chosen = _samples(calls, unknown, samples)
    paths = remaining_paths(calls, model)
    return {call: Rank(call in chosen, path_s) for call, path_s in paths.items()}


def remaining_paths(
    calls: Mapping[Id, tuple[Kind, Iterable[Id]]], model: TaskModel
) -> dict[Id, float]:
    """Return the seconds of the longest path from the begin of each call to the graph's end.

    Parameters
    ----------
    calls
        As in :func:`ranks`. Calls that wait for each other in a circle get their own length.
    model
        Model of the running times.
    """
    lengths = {kind: model.mean_s(kind) for kind in {kind for kind, _ in calls.values()}}
    # Calls that wait for the same list are one group; each call waits for one group or for none.
    group_of: dict[Id, int] = {}
    members: dict[int, int] = {}
    waits: dict[int, list[Id]] = {}
    behind: dict[Id, int] = dict.fromkeys(calls, 0)
    for call, (_, others) in calls.items():
        group = id(others)
        if group not in waits:
            waits[group] = [other for other in others if other in calls]
            members[group] = 0
            for other in waits[group]:
                behind[other] += 1
        group_of[call] = group
        members[group] += 1
    after_s: dict[Id, float] = dict.fromkeys(calls, 0.0)
    longest: dict[int, float] = dict.fromkeys(waits, 0.0)
    paths: dict[Id, float] = {}
    free = [call for call, count in behind.items() if not count]
    while free:
        call = free.pop()
        path_s = paths[call] = lengths[calls[call][0]] + after_s[call]
        group = group_of[call]
        longest[group] = max(longest[group], path_s)
        members[group] -= 1
        if members[group]:
            continue
        for other in waits[group]:
            after_s[other] = max(after_s[other], longest[group])
            behind[other] -= 1
            if not behind[other]:
                free.append(other)
    return {call: paths.get(call, lengths[kind]) for call, (kind, _) in calls.items()}


def _samples(
    calls: Mapping[Id, tuple[Kind, Iterable[Id]]], unknown: set[Kind], samples: int
) -> set[Id]:
    """Return the first calls of each unknown kind; those that wait for no other come first."""
    ready: dict[Kind, list[Id]] = {kind: [] for kind in unknown}
    blocked: dict[Kind, list[Id]] = {kind: [] for kind in unknown}
    for call, (kind, others) in calls.items():
        if kind in unknown and len(ready[kind]) < samples:
            waits = any(other in calls for other in others)
            found = (blocked if waits else ready)[kind]
            if len(found) < samples:
                found.append(call)
    return {call for kind in unknown for call in (ready[kind] + blocked[kind])[:samples]}
