"""Expected times at which a graph's blocked tasks become ready. This module does no I/O."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from scalable.scaling.task_model import Kind

#: Maximum number of blocked tasks that are examined, which bounds the time of a prediction.
LARGEST_LOOK = 10_000
#: Relative width of a time interval. Tasks of one kind that become ready in the same interval are
#: combined into one entry.
RESOLUTION = 0.1

#: Seconds from now, kind and count, the soonest first, by component; see ``PoolView.coming``.
Coming = dict[str, list[tuple[float, Kind, int]]]


Id = TypeVar("Id", bound=Hashable)


class KnownLengths(Protocol):
    """Source of definite task durations, such as one outlook or a task model."""

    def mean_s(self, kind: Kind, /) -> float:
        """Return the mean duration of a kind's tasks."""

    def residual_s(self, kind: Kind, elapsed_s: float, /) -> float:
        """Return the expected remaining seconds of a running task."""


class Slots(NamedTuple):
    """Number of tasks that a pool runs at once, and seconds until its first worker connects."""

    width: int
    begin_s: float = 0.0


@dataclass(frozen=True)
class GraphView(Generic[Id]):
    """Unfinished tasks of a graph. The caller chooses their ids."""

    #: Kind of each task, and seconds that it has run.
    running: Mapping[Id, tuple[Kind, float]] = field(default_factory=dict)
    #: Kind of each task, in the order of execution.
    queued: Mapping[Id, Kind] = field(default_factory=dict)
    #: Kind of each task, and ids of the tasks that it waits for. Ids that are in none of the three
    #: mappings are those of finished tasks.
    blocked: Mapping[Id, tuple[Kind, Iterable[Id]]] = field(default_factory=dict)
    #: Groups of blocked tasks that wait for an unfinished task, as from :func:`grouped`. Tasks of a
    #: group that are not in ``blocked`` are ignored. None to make the groups here, which takes
    #: longer.
    dependents: Mapping[Id, Sequence[Group[Id]]] | None = None


def coming(
    graph: GraphView[Id],
    lengths: KnownLengths,
    slots: Mapping[str, Slots] | None = None,
    limit: int = LARGEST_LOOK,
) -> Coming:
    """Return the times at which blocked tasks are expected to become ready.
    A ready task starts after the last task that is queued in its pool now. Blocked tasks do not
    compete with each other for workers, so distant times are too early rather than too late. A
    component without ``slots`` always has a free slot. Tasks beyond ``limit`` are left out.
    """
    ends, drained = _under_way(graph, lengths, slots or {})
    search = _Search(graph, ends)
    free = search.first(ends)
    found: dict[tuple[Kind, int], list[float]] = {}
    # This loop takes most of the time of a decision, so it looks nothing up twice.
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
    """Blocked tasks that wait for the same tasks, which are therefore examined once."""

    #: Position in the order of submission.
    place: int
    calls: list[Id] = field(default_factory=list)
    #: Number of unfinished tasks that this group waits for.
    waits: int = 0


def grouped(
    blocked: Mapping[Id, tuple[Kind, Iterable[Id]]], others: Container[Id] = ()
) -> tuple[list[Group[Id]], dict[Id, list[Group[Id]]]]:
    """Return all groups of blocked tasks, and map each task to the groups that wait for it.
    ``others`` are the running and queued tasks. All other ids belong to finished tasks.
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
    def __init__(self, graph: GraphView[Id], ends: Mapping[Id, float]) -> None:
        self.groups: list[Group[Id]] = []
        self.dependents: Mapping[Id, Sequence[Group[Id]]]
        if graph.dependents is None:
            self.groups, self.dependents = grouped(graph.blocked, ends)
        else:
            self.dependents = graph.dependents
        #: Number of tasks whose end is unknown yet, and the latest known end, by waiting group.
        self.left: dict[Group[Id], tuple[int, float]] = {}

    def first(self, ends: Mapping[Id, float]) -> deque[tuple[Group[Id], float]]:
        """Return the groups that wait for no blocked task, each with the time when it is ready."""
        found = deque((group, 0.0) for group in self.groups if not group.waits)
        for call, end in ends.items():
            if call in self.dependents:
                self.end(call, end, found)
        return deque(sorted(found, key=lambda entry: entry[0].place))

    def end(self, call: Id, end_s: float, free: deque[tuple[Group[Id], float]]) -> None:
        """Append the groups that wait only for this task, with the times when they are ready."""
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
    """Return the expected end of each running or queued task, and when each queue is empty."""
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
