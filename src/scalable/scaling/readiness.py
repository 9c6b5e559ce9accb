"""Expected times at which the blocked calls of a graph become ready. Pure, with bounded cost."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from scalable.scaling.task_model import Kind, TaskModel

#: Maximum number of blocked calls that are examined, those that become ready first.
LARGEST_LOOK = 10_000
#: Relative width of the time intervals from now; calls of a kind that become ready in the same
#: interval are one entry.
RESOLUTION = 0.1

#: Component -> (seconds from now, kind, count), the soonest first; see ``PoolView.coming``.
Coming = dict[str, list[tuple[float, Kind, int]]]


Id = TypeVar("Id", bound=Hashable)


class Slots(NamedTuple):
    """Slots of a component: number of calls at once, and seconds until the first slot exists."""

    width: int
    begin_s: float = 0.0


@dataclass(frozen=True)
class GraphView(Generic[Id]):
    """Calls of a graph that have not ended; the caller chooses the ids.

    Attributes
    ----------
    running
        Id -> kind of the call, and seconds that it has run.
    queued
        Id -> kind of a ready call that does not run yet, in the order of execution.
    blocked
        Id -> kind of the call, and ids of the calls that it waits for. Ids that are not in this
        view are taken to be ended calls.
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
    """Return the times at which blocked calls are expected to become ready.

    A call is ready when the last call that it waits for has ended. Calls that wait for one with a
    guessed running time are left out: workers should not be paid because of a guess.

    Calls that become ready while others are queued start after the calls that are queued in their
    pool now. They do not wait for each other, so distant times are early rather than late.

    Parameters
    ----------
    graph
        Calls of the graph.
    model
        Model of their running times.
    slots
        Component -> its slots; a component without an entry always has a free slot.
    limit
        Maximum number of blocked calls to examine; calls that wait for further ones are left out.
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
    """Calls that wait for the same calls, which one shared object lists.

    A stage of many calls that follow another stage is so examined once, not once for each call.
    """

    calls: list[Id] = field(default_factory=list)
    ready_s: float = 0.0
    waits: int = 0


def _waiting(
    graph: GraphView[Id], ends: Mapping[Id, float]
) -> tuple[list[_Group[Id]], dict[Id, list[_Group[Id]]]]:
    """Return the groups of blocked calls, and the groups that wait for each blocked call."""
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
    """Return the ends of running and queued calls, and the last start of each component."""
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
