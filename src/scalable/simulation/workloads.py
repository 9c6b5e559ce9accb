"""What simulations replay: calls with their true running times, and pools that run them. Pure.

Made from a table of tasks, from a recorded run, or from a document in WfFormat 1.5
(wfcommons.org); synthetic ones are in the benchmark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from scalable.scaling.task_model import Kind, Sample
from scalable.spec import DeploymentSpec

#: What tells calls of one type apart, at the end of their names.
_NUMBER = re.compile(r"_?(ID)?\d+$")
#: So many calls, and waits of calls for others, are held in memory.
MOST_CALLS, MOST_WAITS = 1_000_000, 20_000_000
#: Recorded numbers beyond this are none.
_MOST = 1e100


class Call(NamedTuple):
    """One call.

    ``after`` holds the places, in the workload, of calls that it waits for; before ``arrival_s`` it
    is not known at all.
    """

    kind: Kind
    duration_s: float
    arrival_s: float = 0.0
    after: tuple[int, ...] = ()
    memory: int | None = None


@dataclass(frozen=True)
class Terms:
    """A pool: bounds, calls that one worker runs at once, price of a worker-second."""

    minimum: int = 0
    maximum: int = 64
    slots: int = 1
    price: float = 1.0


@dataclass(frozen=True)
class Workload:
    """Calls and the pools that run them.

    Attributes
    ----------
    name
        For people.
    calls
        In the order in which they are submitted.
    pools
        Component -> terms; every kind's component is in it.
    stream
        Whether nobody knows when calls come: what counts is how long each takes from its arrival.
        Otherwise all are submitted at once and what counts is when the last one ends.
    expected
        Whether the running times are what was expected of the calls before.
    total
        Most workers of all pools together; None without such a bound.

    Raises
    ------
    ValueError
        When a call has no pool, waits for one that is not there, or calls wait for each other.
    """

    name: str
    calls: tuple[Call, ...]
    pools: Mapping[str, Terms]
    stream: bool = False
    expected: bool = False
    total: int | None = None

    def __post_init__(self) -> None:
        for place, call in enumerate(self.calls):
            if call.kind.component not in self.pools:
                raise ValueError(f"{self.name}: call {place} needs a pool {call.kind.component!r}")
            if not call.duration_s >= 0 or not call.arrival_s >= 0:
                raise ValueError(f"{self.name}: call {place} has a negative time")
            if any(not 0 <= other < len(self.calls) for other in call.after):
                raise ValueError(f"{self.name}: call {place} waits for one that is not there")
        if len(topological(self.calls)) < len(self.calls):
            raise ValueError(f"{self.name}: calls wait for each other in a circle")

    def samples(self) -> list[Sample]:
        """The calls as a task model learns from them."""
        return [Sample(call.kind, call.duration_s, call.memory) for call in self.calls]


def topological(calls: Sequence[Call]) -> list[int]:
    """Places of calls, each after those that it waits for; calls in a circle are left out."""
    waits = [len(set(call.after)) for call in calls]
    dependents = dependents_of(calls)
    order = [place for place, count in enumerate(waits) if not count]
    for place in order:  # grows while it is gone through
        for other in dependents[place]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def dependents_of(calls: Sequence[Call]) -> list[list[int]]:
    """For each call the places of those that wait for it."""
    dependents: list[list[int]] = [[] for _ in calls]
    for place, call in enumerate(calls):
        for other in set(call.after):
            dependents[other].append(place)
    return dependents


@dataclass(frozen=True)
class TaskRow:
    """One task of a table: calls of it, seconds of each, and the tasks that it comes after."""

    name: str
    component: str
    count: int
    durations_s: Sequence[float]
    after: Sequence[str] = ()


def of_tasks(name: str, rows: Iterable[TaskRow], pools: Mapping[str, Terms]) -> Workload:
    """A workload of tasks, each of which starts once those before it have ended.

    Parameters
    ----------
    name
        For people.
    rows
        The tasks; ``durations_s`` are gone through again and again where they are fewer than calls.
    pools
        Component -> terms.

    Raises
    ------
    ValueError
        When a task comes after one that is not there, or has calls without any duration; or there
        are more calls, or waits for others, than can be replayed.
    """
    table = list(rows)
    counts = {row.name: row.count for row in table}
    waits = sum(row.count * counts.get(other, 0) for row in table for other in row.after)
    if sum(counts.values()) > MOST_CALLS or waits > MOST_WAITS:
        raise ValueError(
            f"{sum(counts.values())} calls that wait {waits} times for others are too many to "
            f"replay: at most {MOST_CALLS} and {MOST_WAITS}; smaller counts compare policies too"
        )
    places: dict[str, tuple[int, ...]] = {}
    first = 0
    for row in table:
        if row.count and not row.durations_s:
            raise ValueError(f"task {row.name!r} has no duration")
        places[row.name] = tuple(range(first, first + row.count))
        first += row.count
    calls: list[Call] = []
    for row in table:
        unknown = [other for other in row.after if other not in places]
        if unknown:
            raise ValueError(f"task {row.name!r} comes after {unknown[0]!r}, which is not there")
        after = tuple(place for other in row.after for place in places[other])
        kind = Kind(row.component, row.name)
        calls += [
            Call(kind, row.durations_s[i % len(row.durations_s)], after=after)
            for i in range(row.count)
        ]
    return Workload(name, tuple(calls), pools)


def of_spec(spec: DeploymentSpec, maximum: int, total: int | None = None) -> Workload:
    """A workload of what a manifest expects: ``count`` calls of ``duration`` for each task.

    Parameters
    ----------
    spec
        The request.
    maximum
        Most workers of components that do not say.
    total
        Most workers of all pools together; None without such a bound.

    Raises
    ------
    ValueError
        When a task does not say how many calls of which length it is, or there is none.
    """
    rows = []
    for task in spec.tasks.values():
        missing = [
            key
            for key, value in (("count", task.count), ("duration", task.duration_s))
            if not value
        ]
        if missing:
            raise ValueError(f"tasks.{task.name} has no {' and no '.join(missing)}")
        assert task.count is not None
        assert task.duration_s is not None
        rows.append(
            TaskRow(task.name, task.component, task.count, (task.duration_s,), tuple(task.after))
        )
    if not rows:
        raise ValueError("there are no tasks")
    pools = {}
    for tag, component in spec.components.items():
        bounds = component.workers
        low, high = (0, None) if bounds is None else (bounds.minimum, bounds.maximum)
        if high is None or low == high:  # one count is not what a policy could choose from
            low, high = 0, max(maximum, high or 0)
        high = high if total is None else min(high, total)
        # On local it is the target that says how many calls a worker runs at once.
        slots = int(spec.options.get("threads_per_worker") or component.slots)
        pools[tag] = Terms(min(low, high), high, slots)
    return replace(of_tasks(spec.project_name, rows, pools), expected=True, total=total)


def of_run(name: str, rows: Iterable[Mapping[str, Any]], pools: Mapping[str, Terms]) -> Workload:
    """A workload of what a run recorded: calls that succeeded, when they were submitted.

    Rows that lack what is needed, or hold something else there, are passed over. What waited for
    what is not recorded; a call that was submitted with others still to come is
    replayed at the time of its submission.

    Parameters
    ----------
    name
        For people.
    rows
        Rows of tasks.jsonl, as in :class:`scalable.telemetry.RunRecord`.
    pools
        Tag -> terms; calls of other tags, and without tag, are left out.

    Raises
    ------
    ValueError
        When no call is left.
    """
    submitted: dict[str, float] = {}
    calls: list[Call] = []
    for row in rows:
        task, moment = str(row.get("task_id")), _number(row.get("timestamp"))
        if moment is None:
            continue
        if row.get("state") == "submitted":
            submitted.setdefault(task, moment)
        elif row.get("state") == "succeeded" and (tag := str(row.get("tag"))) in pools:
            duration, memory = _number(row.get("duration_s")), _number(row.get("peak_memory"))
            if duration is None or duration < 0:
                continue
            kind = Kind(tag, str(row.get("task_name") or ""))
            began = submitted.get(task, moment - duration)
            calls.append(
                Call(kind, duration, began, memory=None if memory is None else int(memory))
            )
    if not calls:
        raise ValueError(f"{name}: no call succeeded in any of the pools {', '.join(pools)}")
    first = min(call.arrival_s for call in calls)
    calls = [call._replace(arrival_s=call.arrival_s - first) for call in calls]
    calls.sort(key=lambda call: call.arrival_s)
    last = calls[-1].arrival_s
    return Workload(name, tuple(calls), pools, stream=last > 0)


def _number(value: object) -> float | None:
    """A recorded number; None for anything else, also for what no sum survives."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None


#: Type of task -> name of a pool, told the mean seconds and the total seconds of each type.
Split = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, str]]


def of_wfformat(
    document: Mapping[str, Any], pools: Mapping[str, Terms], split: Split | None = None
) -> Workload:
    """A workload of a workflow's trace in WfFormat 1.5.

    Parameters
    ----------
    document
        The JSON document.
    pools
        Component -> terms.
    split
        In which pool each type of task runs; by default all in the first.

    Raises
    ------
    ValueError
        When the document is something else.
    """
    try:
        workflow = document["workflow"]
        tasks = workflow["specification"]["tasks"]
        ran = {task["id"]: task for task in workflow["execution"]["tasks"]}
        lengths = {task["id"]: float(ran[task["id"]]["runtimeInSeconds"]) for task in tasks}
        parents = {task["id"]: tuple(dict.fromkeys(task.get("parents") or ())) for task in tasks}
        types = {task["id"]: _NUMBER.sub("", task["name"]) for task in tasks}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"no workflow in WfFormat 1.5: {error!r} is missing or wrong in it"
        ) from error
    by_type: dict[str, list[float]] = defaultdict(list)
    for task, length in lengths.items():
        by_type[types[task]].append(length)
    homes = dict.fromkeys(by_type, next(iter(pools)))
    if split is not None:
        homes.update(split({t: (fmean(all_s), sum(all_s)) for t, all_s in by_type.items()}))
    places = {task: place for place, task in enumerate(lengths)}
    calls = [
        Call(
            Kind(homes[types[task]], types[task]),
            length,
            after=tuple(places[parent] for parent in parents[task] if parent in places),
            memory=ran[task].get("memoryInBytes"),
        )
        for task, length in lengths.items()
    ]
    return Workload(str(document.get("name") or "workflow"), tuple(calls), pools)


def long_types_in(big: str, small: str) -> Split:
    """The types with the longest calls, until they hold half of the work, in one pool."""

    def split(types: Mapping[str, tuple[float, float]]) -> dict[str, str]:
        homes: dict[str, str] = {}
        half, held = sum(total for _, total in types.values()) / 2, 0.0
        for name in sorted(types, key=lambda t: (-types[t][0], t)):
            homes[name] = big if held < half else small
            held += types[name][1]
        return homes

    return split
