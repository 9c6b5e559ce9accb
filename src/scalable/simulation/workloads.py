"""Workloads for simulations: calls with their true running times, and pools. No I/O.

A workload is made from a table of tasks, a manifest, a recorded run, or a document in WfFormat 1.5
(wfcommons.org).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from scalable.scaling.task_model import Kind, Sample
from scalable.spec import DeploymentSpec

#: Number at the end of a call's name, by which calls of one type differ.
_NUMBER = re.compile(r"_?(ID)?\d+$")
#: Maximum number of calls, and maximum number of dependencies between calls.
MOST_CALLS, MOST_WAITS = 1_000_000, 20_000_000
#: Recorded numbers larger than this are ignored.
_MOST = 1e100


class Call(NamedTuple):
    """One call of a workload.

    ``after`` contains the indices, in :attr:`Workload.calls`, of the calls that this one waits for.
    Policies do not know the call before ``arrival_s``.
    """

    kind: Kind
    duration_s: float
    arrival_s: float = 0.0
    after: tuple[int, ...] = ()
    memory: int | None = None


@dataclass(frozen=True)
class Terms:
    """Terms of a pool: bounds, calls that a worker runs at once, and price of a worker-second."""

    minimum: int = 0
    maximum: int = 64
    slots: int = 1
    price: float = 1.0


@dataclass(frozen=True)
class Workload:
    """Calls, and the pools that run them.

    Attributes
    ----------
    name
        Name of the workload, for messages.
    calls
        Calls in the order of their submission.
    pools
        Component -> terms of its pool; it must contain the component of each call.
    stream
        Whether calls arrive over time. If True, the result is the mean time from the arrival of a
        call to its end. If False, all calls are submitted at once and the end of the last call is
        the result.
    expected
        Whether policies know the running times in advance.
    total
        Maximum number of workers of all pools together; None for no maximum.

    Raises
    ------
    ValueError
        If there are no calls, a call has no pool or no valid time, a call waits for a missing call,
        or calls wait for each other.
    """

    name: str
    calls: tuple[Call, ...]
    pools: Mapping[str, Terms]
    stream: bool = False
    expected: bool = False
    total: int | None = None

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError(f"{self.name}: there are no calls")
        for place, call in enumerate(self.calls):
            if call.kind.component not in self.pools:
                raise ValueError(f"{self.name}: call {place} needs a pool {call.kind.component!r}")
            if not (0 <= call.duration_s < math.inf and 0 <= call.arrival_s < math.inf):
                raise ValueError(f"{self.name}: call {place} has a negative or infinite time")
            if any(not 0 <= other < len(self.calls) for other in call.after):
                raise ValueError(f"{self.name}: call {place} waits for a call that does not exist")
        if len(topological(self.calls)) < len(self.calls):
            raise ValueError(f"{self.name}: calls wait for each other in a circle")

    def samples(self) -> list[Sample]:
        """Return the calls as samples for a task model."""
        return [Sample(call.kind, call.duration_s, call.memory) for call in self.calls]


def topological(calls: Sequence[Call]) -> list[int]:
    """Return indices of calls in topological order, without calls that wait for each other."""
    waits = [len(set(call.after)) for call in calls]
    dependents = dependents_of(calls)
    order = [place for place, count in enumerate(waits) if not count]
    for place in order:  # grows during the iteration
        for other in dependents[place]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def dependents_of(calls: Sequence[Call]) -> list[list[int]]:
    """Return, for each call, the indices of the calls that wait for this call."""
    dependents: list[list[int]] = [[] for _ in calls]
    for place, call in enumerate(calls):
        for other in set(call.after):
            dependents[other].append(place)
    return dependents


@dataclass(frozen=True)
class TaskRow:
    """One task of a table, with the number and running times of its calls, and earlier tasks."""

    name: str
    component: str
    count: int
    durations_s: Sequence[float]
    after: Sequence[str] = ()


def of_tasks(name: str, rows: Iterable[TaskRow], pools: Mapping[str, Terms]) -> Workload:
    """Return a workload from a table of tasks; a task starts when its ``after`` tasks have ended.

    Parameters
    ----------
    name
        Name for messages.
    rows
        Tasks. If a task has more calls than ``durations_s``, these durations are repeated.
    pools
        Component -> terms.

    Raises
    ------
    ValueError
        If a task waits for a missing task, a task has calls but no duration, or there are too many
        calls or dependencies.
    """
    table = list(rows)
    counts = {row.name: row.count for row in table}
    waits = sum(row.count * counts.get(other, 0) for row in table for other in row.after)
    if sum(counts.values()) > MOST_CALLS or waits > MOST_WAITS:
        raise ValueError(
            f"{sum(counts.values())} calls with {waits} dependencies are too many to "
            f"replay: at most {MOST_CALLS} and {MOST_WAITS} are possible; use smaller counts"
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
            raise ValueError(f"task {row.name!r} waits for unknown task {unknown[0]!r}")
        after = tuple(place for other in row.after for place in places[other])
        kind = Kind(row.component, row.name)
        calls += [
            Call(kind, row.durations_s[i % len(row.durations_s)], after=after)
            for i in range(row.count)
        ]
    return Workload(name, tuple(calls), pools)


def of_spec(spec: DeploymentSpec, maximum: int, total: int | None = None) -> Workload:
    """Return a workload from a manifest: ``count`` calls of ``duration`` for each task.

    Parameters
    ----------
    spec
        The deployment.
    maximum
        Maximum number of workers of each component whose ``workers`` give no range.
    total
        Maximum number of workers of all pools together; None for no maximum.

    Raises
    ------
    ValueError
        If there are no tasks, or a task has no ``count`` or no ``duration``.
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
        if high is None or low == high:  # a policy cannot choose from one count
            low, high = 0, max(maximum, high or 0)
        high = high if total is None else min(high, total)
        # The provider "local" has an option for the number of calls that a worker runs at once.
        slots = int(spec.options.get("threads_per_worker") or component.slots)
        pools[tag] = Terms(min(low, high), high, slots)
    return replace(of_tasks(spec.project_name, rows, pools), expected=True, total=total)


def of_run(name: str, rows: Iterable[Mapping[str, Any]], pools: Mapping[str, Terms]) -> Workload:
    """Return a workload from a recorded run: its successful calls, when they were submitted.

    Incomplete or invalid rows are skipped. A record does not contain dependencies between calls, so
    each call arrives at the time of its submission.

    Parameters
    ----------
    name
        Name for messages.
    rows
        Rows of tasks.jsonl, as in :class:`scalable.telemetry.RunRecord`.
    pools
        Tag -> terms of its pool. Calls with another tag or without a tag are left out.

    Raises
    ------
    ValueError
        If no call is left.
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
    """Return a recorded number, or None for other values and for numbers that are too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None


#: Function that takes type of task -> (mean, total) seconds and returns type -> name of its pool.
Split = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, str]]


def of_wfformat(
    document: Mapping[str, Any], pools: Mapping[str, Terms], split: Split | None = None
) -> Workload:
    """Return a workload from a trace in WfFormat 1.5.

    Tasks that run the same program are calls of one kind.

    Parameters
    ----------
    document
        The JSON document.
    pools
        Component -> terms of its pool.
    split
        Function that assigns types of tasks to pools. By default all tasks run in the first pool.

    Raises
    ------
    ValueError
        If the document is not in WfFormat 1.5.
    """
    try:
        workflow = document["workflow"]
        tasks = workflow["specification"]["tasks"]
        ran = {task["id"]: task for task in workflow["execution"]["tasks"]}
        lengths = {task["id"]: float(ran[task["id"]]["runtimeInSeconds"]) for task in tasks}
        parents = {task["id"]: tuple(dict.fromkeys(task.get("parents") or ())) for task in tasks}
        types = {task["id"]: _type_of(task["name"], ran[task["id"]]) for task in tasks}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"the document is not in WfFormat 1.5: {error!r} is missing or invalid"
        ) from error
    if len(lengths) < len(tasks):
        ((twice, _),) = Counter(task["id"] for task in tasks).most_common(1)
        raise ValueError(f"the document has several tasks with the id {twice!r}")
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


def _type_of(name: str, ran: Mapping[str, Any]) -> str:
    """Return the type of a task: its program, or its name without the number at the end.

    Names of tasks may contain the names of their files, which differ from task to task. Some
    systems write a whole script for the program; the name is then the better type.
    """
    command = ran.get("command")
    program = command.get("program") if isinstance(command, Mapping) else None
    if isinstance(program, str) and len(program.split()) == 1 and name.startswith(program):
        return program
    return _NUMBER.sub("", name)


def long_types_in(big: str, small: str) -> Split:
    """Return a split that puts the types with the longest calls into the pool ``big``.

    They do about half of the work. All other types go into the pool ``small``.
    """

    def split(types: Mapping[str, tuple[float, float]]) -> dict[str, str]:
        homes: dict[str, str] = {}
        half, held = sum(total for _, total in types.values()) / 2, 0.0
        for name in sorted(types, key=lambda t: (-types[t][0], t)):
            homes[name] = big if held < half else small
            held += types[name][1]
        return homes

    return split
