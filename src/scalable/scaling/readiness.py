"""Expected times at which the blocked calls of a graph become ready. No I/O.

A call is blocked while calls that it depends on have not ended. The number of examined calls is
limited, so that the time of a prediction is bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from scalable.scaling.task_model import Kind

#: Maximum number of blocked calls that are examined, from the first calls of the graph on.
LARGEST_LOOK = 10_000
#: Relative width of a time interval. Calls of one kind that become ready in the same interval are
#: combined into one entry.
RESOLUTION = 0.1

#: Component -> (seconds from now, kind, count), the soonest first; see ``PoolView.coming``.
Coming = dict[str, list[tuple[float, Kind, int]]]


Id = TypeVar("Id", bound=Hashable)


class KnownLengths(Protocol):
    """Definite running times of calls, such as those of one outlook or of a task model."""

    def mean_s(self, kind: Kind, /) -> float:
        """Return the mean running time of a kind's calls in seconds."""

    def residual_s(self, kind: Kind, elapsed_s: float, /) -> float:
        """Return the expected remaining seconds of a call that has run for some seconds."""


class Slots(NamedTuple):
    """Number of calls that a pool runs at once, and seconds until its first worker connects."""

    width: int
    begin_s: float = 0.0


@dataclass(frozen=True)
class GraphView(Generic[Id]):
    """Calls of a graph that have not ended. The caller chooses the ids of the calls.

    Attributes
    ----------
    running
        Id -> kind of the call, and seconds that it has run.
    queued
        Id -> kind of a ready call that does not run yet, in the order of execution.
    blocked
        Id -> kind of the call, and ids of the calls that it waits for. Ids that are in none of the
        three attributes count as ended calls.
    dependents
        Id of a call that has not ended -> groups of blocked calls that wait for it, as from
        :func:`grouped`; calls of a group that are not in ``blocked`` are left out. None if the
        caller does not keep groups up to date; they are then made from ``blocked``, which takes
        longer.
    """

    running: Mapping[Id, tuple[Kind, float]] = field(default_factory=dict)
    queued: Mapping[Id, Kind] = field(default_factory=dict)
    blocked: Mapping[Id, tuple[Kind, Iterable[Id]]] = field(default_factory=dict)
    dependents: Mapping[Id, Sequence[Group[Id]]] | None = None


def coming(
    graph: GraphView[Id],
    lengths: KnownLengths,
    slots: Mapping[str, Slots] | None = None,
    limit: int = LARGEST_LOOK,
) -> Coming:
    """Return the times at which blocked calls are expected to become ready.

    A call is ready when the last call that it waits for has ended.

    A blocked call is assumed to start when it is ready and the last call that is queued in its pool
    now has started. Blocked calls are assumed not to compete for workers with each other, so times
    in the distant future are too early rather than too late.

    Parameters
    ----------
    graph
        Calls of the graph.
    lengths
        Running times of the calls.
    slots
        Component -> slots of its workers. A component without an entry always has a free slot.
    limit
        Maximum number of blocked calls to examine. The result omits calls that depend on others
        beyond this number.
    """
    ends, drained = _under_way(graph, lengths, slots or {})
    search = _Search(graph, ends)
    free = search.first(ends)
    found: dict[tuple[Kind, int], list[float]] = {}
    # This loop takes most of the time of a decision, so it asks for nothing twice.
    blocked, behind = graph.blocked, search.dependents
    lasts: dict[Kind, tuple[float, float]] = {}
    looked, width = 0, math.log1p(RESOLUTION)
    while free and looked < limit:
        group, at = free.popleft()
        interval = int(math.log1p(at) / width)
        for call in group.calls[: limit - looked]:
            known = blocked.get(call)
            if known is None:
                continue
            kind = known[0]
            entry = found.get((kind, interval))
            if entry is None:
                found[kind, interval] = [at, 1]
            else:
                entry[0] += at
                entry[1] += 1
            if call in behind:
                last = lasts.get(kind)
                if last is None:
                    begin = drained.get(kind.component, 0.0)
                    last = lasts[kind] = begin, lengths.mean_s(kind)
                begin, length = last
                search.end(call, max(begin, at) + length, free)
        looked += len(group.calls)
    return _by_component(found)


@dataclass(eq=False)
class Group(Generic[Id]):
    """Blocked calls that wait for the same calls, given by one shared list object.

    If many calls wait for the same many calls, their list is examined once instead of once per
    waiting call.

    Attributes
    ----------
    place
        Number that is larger than those of the groups whose calls were submitted before.
    calls
        Ids of the calls of this group.
    waits
        Number of calls that have not ended and that this group waits for.
    """

    place: int
    calls: list[Id] = field(default_factory=list)
    waits: int = 0


def grouped(
    blocked: Mapping[Id, tuple[Kind, Iterable[Id]]], others: Container[Id] = ()
) -> tuple[list[Group[Id]], dict[Id, list[Group[Id]]]]:
    """Return all groups of blocked calls, and for each call the groups that wait for it.

    Parameters
    ----------
    blocked
        As in :class:`GraphView`.
    others
        Ids of the calls that run or are queued. All other ids count as ended calls.
    """
    groups: dict[int, Group[Id]] = {}
    dependents: dict[Id, list[Group[Id]]] = {}
    for call, (_, waits) in blocked.items():
        group = groups.get(id(waits))
        if group is None:
            group = groups[id(waits)] = Group(len(groups))
            for other in waits:
                if other in others or other in blocked:
                    group.waits += 1
                    dependents.setdefault(other, []).append(group)
        group.calls.append(call)
    return list(groups.values()), dependents


class _Search(Generic[Id]):
    """Search through the groups of a graph, from the calls that run or are queued."""

    def __init__(self, graph: GraphView[Id], ends: Mapping[Id, float]) -> None:
        self.groups: list[Group[Id]] = []
        self.dependents: Mapping[Id, Sequence[Group[Id]]]
        if graph.dependents is None:
            self.groups, self.dependents = grouped(graph.blocked, ends)
        else:
            self.dependents = graph.dependents
        #: Group -> number of its calls whose end is not known yet, and the latest known end.
        self.left: dict[Group[Id], tuple[int, float]] = {}

    def first(self, ends: Mapping[Id, float]) -> deque[tuple[Group[Id], float]]:
        """Return the groups that wait for no blocked call, and when they are ready."""
        found = deque((group, 0.0) for group in self.groups if not group.waits)
        for call, end in ends.items():
            if call in self.dependents:
                self.end(call, end, found)
        return deque(sorted(found, key=lambda entry: entry[0].place))

    def end(self, call: Id, end_s: float, free: deque[tuple[Group[Id], float]]) -> None:
        """Add the groups for which this call is the last to end, and when they are ready."""
        for group in self.dependents[call]:
            if group.waits == 1:
                free.append((group, end_s))
                continue
            left, ready_s = self.left.get(group, (group.waits, 0.0))
            ready_s = max(ready_s, end_s)
            if left > 1:
                self.left[group] = left - 1, ready_s
            else:
                free.append((group, ready_s))


def _under_way(
    graph: GraphView[Id],
    lengths: KnownLengths,
    slots: Mapping[str, Slots],
) -> tuple[dict[Id, float], dict[str, float]]:
    """Return the expected end of each running or queued call, and when each queue is empty."""
    ends: dict[Id, float] = {}
    ahead: dict[str, float] = defaultdict(float)
    for call, (kind, elapsed) in graph.running.items():
        left = ends[call] = lengths.residual_s(kind, elapsed)
        ahead[kind.component] += left
    drained: dict[str, float] = {}
    for call, kind in graph.queued.items():
        place = slots.get(kind.component)
        start = (
            0.0 if place is None else place.begin_s + ahead[kind.component] / max(1, place.width)
        )
        drained[kind.component] = start
        length = lengths.mean_s(kind)
        ends[call] = start + length
        ahead[kind.component] += length
    return ends, drained


def _by_component(found: Mapping[tuple[Kind, int], list[float]]) -> Coming:
    result: Coming = defaultdict(list)
    for (kind, _), (total, count) in found.items():
        result[kind.component].append((total / count, kind, int(count)))
    for entries in result.values():
        entries.sort()
    return dict(result)
