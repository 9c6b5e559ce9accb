"""When the calls of a graph that wait for others will be ready. Pure, and bounded in cost."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from scalable.scaling.task_model import Kind, TaskModel

#: No more waiting calls than this are looked at, those next to be ready first.
LARGEST_LOOK = 10_000
#: Calls of a kind that become ready within so much of each other, relative to how far ahead that
#: is, are one entry.
RESOLUTION = 0.1

#: Component -> (seconds from now, kind, count), the soonest first; see ``PoolView.coming``.
Coming = dict[str, list[tuple[float, Kind, int]]]


Id = TypeVar("Id", bound=Hashable)


class Slots(NamedTuple):
    """Where a component's calls run: how many at once, and when the first can, in seconds."""

    width: int
    begin_s: float = 0.0


@dataclass(frozen=True)
class GraphView(Generic[Id]):
    """The calls of a graph that have not ended; ids are of the caller's choosing.

    Attributes
    ----------
    running
        Id -> kind and seconds that the call has run for.
    queued
        Id -> kind of a ready call that does not run yet, in the order in which they will.
    blocked
        Id -> kind of a call, and the calls that it waits for. Those that are nowhere in this view
        are taken to have ended.
    """

    running: Mapping[Id, tuple[Kind, float]] = field(default_factory=dict)
    queued: Mapping[Id, Kind] = field(default_factory=dict)
    blocked: Mapping[Id, tuple[Kind, Iterable[Id]]] = field(default_factory=dict)


def coming(
    graph: GraphView[Id],
    model: TaskModel,
    slots: Mapping[str, Slots] | None = None,
    limit: int = LARGEST_LOOK,
) -> Coming:
    """When the calls that wait for others are expected to be ready.

    A call is ready when the last one that it waits for has ended. What waits for a call whose
    running time is only guessed is left out: nobody should be paid on a guess.

    Calls that are queued, or become ready while others are queued, start behind what is queued in
    their pool now; among themselves they do not wait, so that far ahead the times are early rather
    than late.

    Parameters
    ----------
    graph
        The calls.
    model
        What they take.
    slots
        Component -> where its calls run; without, there is always a free slot.
    limit
        So many waiting calls are looked at; what waits for calls beyond is left out.
    """
    means: dict[Kind, float] = {}
    known: dict[Kind, bool] = {}

    def mean_s(kind: Kind) -> float:
        if kind not in means:
            means[kind], known[kind] = model.mean_s(kind), model.knows(kind)
        return means[kind]

    def length_s(kind: Kind) -> float:
        mean = mean_s(kind)
        return mean if known[kind] else math.inf

    ends, drained = _under_way(graph, model, mean_s, length_s, slots or {})
    groups, dependents = _waiting(graph, ends)
    free = deque(
        (call, group.ready_s) for group in groups if not group.waits for call in group.calls
    )
    found: dict[tuple[Kind, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    looked = 0
    while free and looked < limit:
        call, at = free.popleft()
        looked += 1
        kind = graph.blocked[call][0]
        if at < math.inf:
            entry = found[kind, int(math.log1p(at) / math.log1p(RESOLUTION))]
            entry[0] += at
            entry[1] += 1
        end = max(at, drained.get(kind.component, 0.0)) + length_s(kind)
        for group in dependents.get(call, ()):
            group.ready_s = max(group.ready_s, end)
            group.waits -= 1
            if not group.waits:
                free.extend((other, group.ready_s) for other in group.calls)
    return _by_component(found)


@dataclass
class _Group(Generic[Id]):
    """Calls that wait for the very same calls: one object says for which.

    So a stage of many calls after another one is looked at once, and not once for each call.
    """

    calls: list[Id] = field(default_factory=list)
    ready_s: float = 0.0
    waits: int = 0


def _waiting(
    graph: GraphView[Id], ends: Mapping[Id, float]
) -> tuple[list[_Group[Id]], dict[Id, list[_Group[Id]]]]:
    """Groups of blocked calls, and which of them wait for a blocked call."""
    groups: dict[int, _Group[Id]] = {}
    dependents: dict[Id, list[_Group[Id]]] = defaultdict(list)
    for call, (_, others) in graph.blocked.items():
        group = groups.get(id(others))
        if group is None:
            group = groups[id(others)] = _Group()
            for other in others:
                if other in ends:
                    group.ready_s = max(group.ready_s, ends[other])
                elif other in graph.blocked:
                    group.waits += 1
                    dependents[other].append(group)
        group.calls.append(call)
    return list(groups.values()), dependents


def _under_way(
    graph: GraphView[Id],
    model: TaskModel,
    mean_s: Callable[[Kind], float],
    length_s: Callable[[Kind], float],
    slots: Mapping[str, Slots],
) -> tuple[dict[Id, float], dict[str, float]]:
    """When calls that run or are queued end, and when each component has started all of them."""
    ends: dict[Id, float] = {}
    ahead: dict[str, float] = defaultdict(float)
    for call, (kind, elapsed) in graph.running.items():
        left = model.residual_s(kind, elapsed)
        ends[call] = left if length_s(kind) < math.inf else math.inf
        ahead[kind.component] += left
    drained: dict[str, float] = {}
    for call, kind in graph.queued.items():
        place = slots.get(kind.component)
        start = (
            0.0 if place is None else place.begin_s + ahead[kind.component] / max(1, place.width)
        )
        drained[kind.component] = start
        ends[call] = start + length_s(kind)
        ahead[kind.component] += mean_s(kind)
    return ends, drained


def _by_component(found: Mapping[tuple[Kind, int], list[float]]) -> Coming:
    result: Coming = defaultdict(list)
    for (kind, _), (total, count) in found.items():
        result[kind.component].append((total / count, kind, int(count)))
    for entries in result.values():
        entries.sort()
    return dict(result)
