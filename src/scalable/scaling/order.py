"""Order in which the ready calls of a graph run: the longest remaining path first. No I/O.

The remaining path of a call is the call and the calls behind it, one after the other. Its length is
the upward rank of HEFT (Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity
task scheduling for heterogeneous computing") without transfers, and the level of Hu (1961). A list
schedule in this order keeps calls that all later work waits for from running last.

The lengths of calls come from the task model. The first calls of a task of which nothing is known
run early, so that the ranks before them become right soon.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
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
    chosen = first_calls(calls, dict.fromkeys(unknown, samples))
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
    means = {kind: model.mean_s(kind) for kind in {kind for kind, _ in calls.values()}}
    return _grouped_paths(
        {call: means[kind] for call, (kind, _) in calls.items()},
        {call: others for call, (_, others) in calls.items()},
    )


def longest_paths(
    lengths: Mapping[Id, float], waits: Callable[[Id], Iterable[Id]]
) -> Mapping[Id, float]:
    """Return the seconds of the longest path from the begin of each call to the graph's end.

    The paths are those of :func:`remaining_paths`. One pass finds them if each call is listed after
    the calls that it waits for, as in Dask's static order.

    Parameters
    ----------
    lengths
        Id -> length of the call in seconds.
    waits
        Returns the ids of the calls that a call waits for. Ids without a length count as ended
        calls.
    """
    after_s = dict.fromkeys(lengths, 0.0)
    paths: dict[Id, float] = {}
    for call in reversed(list(lengths)):
        path_s = paths[call] = lengths[call] + after_s[call]
        for other in waits(call):
            behind_s = after_s.get(other)
            if behind_s is not None and behind_s < path_s:
                if other in paths:
                    return _grouped_paths(lengths, {call: list(waits(call)) for call in lengths})
                after_s[other] = path_s
    return paths


def _grouped_paths(
    lengths: Mapping[Id, float], waits_for: Mapping[Id, Iterable[Id]]
) -> dict[Id, float]:
    """Return the longest paths of calls in any order; see :func:`ranks` for the time it takes."""
    # Calls that wait for the same list are one group; each call waits for one group or for none.
    group_of: dict[Id, int] = {}
    members: dict[int, int] = {}
    waits: dict[int, list[Id]] = {}
    behind: dict[Id, int] = dict.fromkeys(lengths, 0)
    for call, others in waits_for.items():
        group = id(others)
        if group not in waits:
            waits[group] = [other for other in others if other in lengths]
            members[group] = 0
            for other in waits[group]:
                behind[other] += 1
        group_of[call] = group
        members[group] += 1
    after_s: dict[Id, float] = dict.fromkeys(lengths, 0.0)
    longest: dict[int, float] = dict.fromkeys(waits, 0.0)
    paths: dict[Id, float] = {}
    free = [call for call, count in behind.items() if not count]
    while free:
        call = free.pop()
        path_s = paths[call] = lengths[call] + after_s[call]
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
    return {call: paths.get(call, length_s) for call, length_s in lengths.items()}


def first_calls(
    calls: Mapping[Id, tuple[Kind, Iterable[Id]]], counts: Mapping[Kind, int]
) -> set[Id]:
    """Return the first calls of some kinds; those that wait for no other of the calls come first.

    Parameters
    ----------
    calls
        As in :func:`ranks`.
    counts
        Kind -> number of calls to return; none of the other kinds.
    """
    ready: dict[Kind, list[Id]] = {kind: [] for kind in counts}
    blocked: dict[Kind, list[Id]] = {kind: [] for kind in counts}
    for call, (kind, others) in calls.items():
        count = counts.get(kind, 0)
        if count and len(ready[kind]) < count:
            waits = any(other in calls for other in others)
            found = (blocked if waits else ready)[kind]
            if len(found) < count:
                found.append(call)
    return {
        call for kind, count in counts.items() for call in (ready[kind] + blocked[kind])[:count]
    }
