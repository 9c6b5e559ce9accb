"""Order in which the ready calls of a graph run: the longest remaining path first. No I/O.

The remaining path of a call is the call and the calls behind it, one after the other. Its length is
the upward rank of HEFT (Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity
task scheduling for heterogeneous computing") without transfers, and the level of Hu (1961). A list
schedule in this order keeps calls that all later work waits for from running last. Of calls with
nearly the same path, the one that most calls wait for runs first, as in CP/MISF (Kasahara and
Narita 1984, "Practical multiprocessor scheduling algorithms for efficient parallel processing").

The lengths of calls come from the task model. A task of which nothing is known counts with its
expected length, not with its typical one: its length may turn out to be anything, and if it is
long, it must have begun early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from scalable.scaling.task_model import LARGEST_HISTORY_WEIGHT, Kind, TaskModel

#: Number of classes of remaining paths for each factor of two: paths within about 9 % of each other
#: have one class.
CLASSES_PER_DOUBLING = 8
#: Remaining path in seconds below which all calls have one class.
SHORTEST_PATH_S = 1e-3
#: Relative change of a task's length after which ranks are worth computing again.
CHANGED = 0.1

Id = TypeVar("Id", bound=Hashable)


@lru_cache(4096)  # many calls have the same path
def rank(path_s: float, dependents: int) -> float:
    """Return the rank of a call; of two ready calls the one with the larger rank runs first.

    Calls with equal ranks should run first come, first served. The integral part of the rank is the
    class of the path, see :data:`CLASSES_PER_DOUBLING`.

    Parameters
    ----------
    path_s
        Longest remaining path of the call in seconds, including the call.
    dependents
        Number of calls that wait for the call.
    """
    path_class = math.floor(math.log2(max(path_s, SHORTEST_PATH_S)) * CLASSES_PER_DOUBLING)
    return path_class + dependents / (dependents + 1)


class Length:
    """Expected length of a task's calls, as the present order uses it.

    Parameters
    ----------
    kind
        Component and name of the task.
    model
        Model of the running times.

    Attributes
    ----------
    seconds
        Expected running time of a call in seconds.
    calls
        Number of calls that have ended.
    """

    __slots__ = ("calls", "kind", "seconds")

    def __init__(self, kind: Kind, model: TaskModel) -> None:
        self.kind = kind
        self.calls = 0
        self.read(model)

    def read(self, model: TaskModel) -> None:
        """Take the present length from the model."""
        self.seconds = expected_s(self.kind, model)

    def ended(self, model: TaskModel) -> bool:
        """Count an ended call; return whether the length has changed by much since it was read.

        The length is compared after 1, 2, 4, ... calls, because a mean of many changes slowly.
        """
        self.calls += 1
        if self.calls & (self.calls - 1):
            return False
        return abs(expected_s(self.kind, model) - self.seconds) > CHANGED * self.seconds


def expected_s(kind: Kind, model: TaskModel) -> float:
    """Return the expected running time of a task's calls in seconds, for the order.

    It is the mean of the measured calls. What was assumed before counts as one call: the manifest's
    value, or the typical length of the component's tasks. Earlier runs count as at most
    :data:`~scalable.scaling.task_model.LARGEST_HISTORY_WEIGHT` calls. If nothing is known, it is
    the mean of a lognormal distribution around the typical length.

    Parameters
    ----------
    kind
        Component and name of the task.
    model
        Model of the running times.
    """
    earlier, ended = model.measured(kind)
    before_s, weight = earlier.mean_s, min(earlier.calls, LARGEST_HISTORY_WEIGHT)
    if not weight:
        stated_s, weight = model.stated_s(kind), 1
        before_s = _typical_s(kind.component, model) if stated_s is None else stated_s
        if stated_s is None and not ended.calls:
            prior = model.prior
            return before_s * math.exp((prior.pool_spread**2 + prior.task_spread**2) / 2)
    return (weight * before_s + ended.calls * ended.mean_s) / (weight + ended.calls)


def _typical_s(component: str, model: TaskModel) -> float:
    """Return the typical length of a component's tasks in seconds, with the one assumed at first.

    It is the geometric mean, because lengths differ by orders of magnitude.
    """
    measured = model.tasks(component)
    return math.exp((measured.log_s + math.log(model.unknown_s)) / (measured.tasks + 1))


def remaining_paths(
    calls: Mapping[Id, tuple[Kind, Iterable[Id]]], lengths: Mapping[Kind, Length]
) -> dict[Id, float]:
    """Return the seconds of the longest path from the begin of each call to the graph's end.

    The time is proportional to the number of calls and dependencies; calls that wait for the same
    list object count once.

    Parameters
    ----------
    calls
        Id -> kind of the call, and ids of the calls that it waits for. Ids without an entry count
        as ended calls. Calls that wait for each other in a circle get their own length.
    lengths
        Lengths of the calls of each kind.
    """
    return _grouped_paths(
        {call: lengths[kind].seconds for call, (kind, _) in calls.items()},
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
    """Return the longest paths of calls in any order."""
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
