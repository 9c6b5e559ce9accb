"""Workloads for simulations: calls with their true running times, pools, and start-up times.

A workload is made from a table of tasks, or from a document in WfFormat 1.5 (wfcommons.org).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from scalable.scaling.task_model import Kind, Sample

#: Number at the end of a call's name, by which calls of one type differ.
_NUMBER = re.compile(r"_?(ID)?\d+$")


class Call(NamedTuple):
    """One call. ``after``: indices of the calls that it waits for, in the workload's calls."""

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
class Startup:
    """Start-up times of workers in seconds, and how their time is billed."""

    #: Typical time from the request of a worker until it connects.
    delay_s: float = 1.0
    #: Billed part of the delay, which is its last part.
    billed_s: float = 1.0
    #: Minimum time for which a worker is billed.
    least_s: float = 0.0
    #: Smallest and largest delay as multiples of ``delay_s``; delays are uniformly distributed.
    spread: tuple[float, float] = (0.8, 1.3)
    #: Delay that policies expect until the first worker has connected; None for ``delay_s``.
    expected_s: float | None = None
    #: Seconds to whose multiples the billed time is rounded up; 0 for no rounding.
    granularity_s: float = 0.0

    @property
    def told_s(self) -> float:
        """Delay that policies expect until the first worker has connected."""
        return self.delay_s if self.expected_s is None else self.expected_s

    @property
    def boot_s(self) -> float:
        return min(self.billed_s, self.delay_s)

    def paid_s(self, seconds: float) -> float:
        """Return the billed seconds of a worker that ran for the given billed seconds."""
        paid = max(seconds, self.least_s)
        if not self.granularity_s:
            return paid
        return math.ceil(paid / self.granularity_s - 1e-9) * self.granularity_s


@dataclass(frozen=True)
class Workload:
    """Calls in the order of their submission, and component -> terms of the pool that runs them."""

    name: str
    calls: tuple[Call, ...]
    pools: Mapping[str, Terms]
    stream: bool = False

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError(f"{self.name}: there are no calls")
        if len(topological(self.calls)) < len(self.calls):
            raise ValueError(f"{self.name}: calls wait for each other in a circle")

    def samples(self) -> list[Sample]:
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
    """One task of a table, with the running times of its calls, and earlier tasks."""

    name: str
    component: str
    durations_s: Sequence[float]
    after: Sequence[str] = ()


def of_tasks(name: str, rows: Iterable[TaskRow], pools: Mapping[str, Terms]) -> Workload:
    """Return a workload from a table of tasks; a task starts when those before it have ended."""
    table = list(rows)
    places: dict[str, range] = {}
    first = 0
    for row in table:
        places[row.name] = range(first, first + len(row.durations_s))
        first += len(row.durations_s)
    calls: list[Call] = []
    for row in table:
        after = tuple(place for other in row.after for place in places[other])
        calls += [Call(Kind(row.component, row.name), s, after=after) for s in row.durations_s]
    return Workload(name, tuple(calls), pools)


#: Function that takes type of task -> (mean, total) seconds and returns type -> name of its pool.
Split = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, str]]


def of_wfformat(
    document: Mapping[str, Any], pools: Mapping[str, Terms], split: Split | None = None
) -> Workload:
    """Return a workload from a trace in WfFormat 1.5, with one kind of call for each program."""
    try:
        workflow = document["workflow"]
        tasks = workflow["specification"]["tasks"]
        ran = {task["id"]: task for task in workflow["execution"]["tasks"]}
        lengths = {task["id"]: float(ran[task["id"]]["runtimeInSeconds"]) for task in tasks}
        parents = {task["id"]: tuple(dict.fromkeys(task.get("parents") or ())) for task in tasks}
        types = {task["id"]: _type_of(task["name"], ran[task["id"]]) for task in tasks}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the document is not in WfFormat 1.5: {error!r}") from error
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


def traces(
    directory: Path, pools: Mapping[str, Terms], split: Split | None = None
) -> Iterator[tuple[str, Workload]]:
    """Yield the family and the workload of each trace (``*.json``) of a directory, by name."""
    for path in sorted(directory.glob("*.json")):
        workload = of_wfformat(json.loads(path.read_bytes()), pools, split)
        yield path.stem.split("-")[0], replace(workload, name=path.stem)


def _type_of(name: str, ran: Mapping[str, Any]) -> str:
    """Return the type of a task: its program, or its name without the number at the end."""
    command = ran.get("command")
    program = command.get("program") if isinstance(command, Mapping) else None
    if isinstance(program, str) and len(program.split()) == 1 and name.startswith(program):
        return program
    return _NUMBER.sub("", name)


def long_types_in(big: str, small: str) -> Split:
    """Return a split that puts the types with the longest calls into the pool ``big``."""

    def split(types: Mapping[str, tuple[float, float]]) -> dict[str, str]:
        homes: dict[str, str] = {}
        half, held = sum(total for _, total in types.values()) / 2, 0.0
        for name in sorted(types, key=lambda t: (-types[t][0], t)):
            homes[name] = big if held < half else small
            held += types[name][1]
        return homes

    return split
