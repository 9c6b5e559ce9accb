"""Cases of the benchmark of calibration: earlier runs, a plan, and the outcome that it predicts.

Each case takes one workload, makes the records of earlier runs from a part of it, and has the rest
to execute.

- ``subset``: a random part of each task's calls is the earlier run, and the others are executed.
  A task starts when all calls of the tasks before it have ended, as a manifest reads.
- ``rest``: the same, but each of the other calls starts when the calls that it waits for have
  ended. Nothing in the record tells the plan of this.
- ``again``: one to four earlier runs and the executed one are the workload with running times that
  vary from run to run (all calls, and all calls of a task) and from call to call. The records have
  the times at which the calls of each task began and ended.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalable.forecasting import knowledge_of
from scalable.model import ComponentSpec, DeploymentSpec, TaskSpec, WorkerRange
from scalable.planning import make_plan
from scalable.planning.uncertainty import BAND
from scalable.runs import CallRecord, EarlierRun
from scalable.runs.earlier_run import Span
from scalable.scaling.task_model import Kind
from simulation import workloads as simulated
from simulation.rules import Fixed
from simulation.simulator import simulate
from simulation.workloads import (
    Call,
    Startup,
    TaskRow,
    Terms,
    Workload,
    long_types_in,
    of_tasks,
    topological,
)

KINDS = ("subset", "rest", "again")

POOLS = {"big": Terms(), "small": Terms()}
WORKERS = (2, 4, 8, 16, 32)
STARTUPS_S = (1.0, 10.0, 60.0)
PARTS = (0.05, 0.1, 0.3, 0.5)
#: Standard deviations of logarithms: of a factor of a run, of a task in a run, and of a call.
VARIATIONS = ((0.0, 0.0, 0.05), (0.05, 0.05, 0.1), (0.1, 0.1, 0.2), (0.2, 0.1, 0.2))


@dataclass(frozen=True)
class Case:
    """One plan and its outcome."""

    family: str
    kind: str
    confidence: float
    predicted_s: float
    interval_s: tuple[float, float]
    actual_s: float

    @property
    def held(self) -> bool:
        """Whether the run took 0.8 to 1.25 times the predicted time."""
        return BAND[0] <= self.actual_s / self.predicted_s <= BAND[1]

    @property
    def inside(self) -> bool:
        """Whether the run took a time in the stated interval."""
        return self.interval_s[0] <= self.actual_s <= self.interval_s[1]


def traces(directory: Path) -> Iterator[tuple[str, Workload]]:
    """Return family and workload of each trace in a directory."""
    return simulated.traces(directory, POOLS, long_types_in("big", "small"))


def generated(chance: random.Random) -> tuple[str, Workload]:
    """Return the family and workload of a random graph."""
    family = chance.choice(["fork-join", "chains", "levels", "heavy-tailed"])
    typical = 10 ** chance.uniform(0, 2.5)

    def lengths(count: int, spread: float) -> list[float]:
        usual = typical * math.exp(chance.gauss(0, 0.7))
        return [usual * math.exp(chance.gauss(0, spread)) for _ in range(count)]

    width = round(10 ** chance.uniform(1, 2.7))
    spread = chance.choice([0.1, 0.3, 0.6])
    if family == "chains":
        stages = chance.randint(2, 5)
        calls = []
        for stage in range(stages):
            kind = Kind("big" if stage % 2 else "small", f"s{stage}")
            for place, length in enumerate(lengths(width, spread)):
                after = ((stage - 1) * width + place,) if stage else ()
                calls.append(Call(kind, length, after=after))
        return family, Workload(family, tuple(calls), POOLS)
    if family == "levels":
        rows = []
        for level in range(chance.randint(2, 5)):
            count = max(1, round(width * chance.uniform(0.2, 1)))
            before = [rows[-1].name] if rows else []
            tag = "big" if level % 2 else "small"
            rows.append(TaskRow(f"l{level}", tag, lengths(count, spread), before))
        return family, of_tasks(family, rows, POOLS)
    if family == "heavy-tailed":
        spread = chance.choice([1.0, 1.5])
    rows = [
        TaskRow("split", "small", lengths(1, 0.1)),
        TaskRow("work", "big", lengths(width, spread), ["split"]),
        TaskRow("join", "small", lengths(1, 0.1), ["work"]),
    ]
    return family, of_tasks(family, rows, POOLS)


def order_of(workload: Workload) -> dict[str, list[str]]:
    """Return task -> tasks before it, without edges that would close a circle."""
    depth: dict[str, int] = {}
    level: list[int] = []
    edges: dict[str, set[str]] = defaultdict(set)
    for call in workload.calls:
        level.append(0)
        edges.setdefault(call.kind.task, set())
    for place in topological(workload.calls):
        call = workload.calls[place]
        level[place] = max((level[other] + 1 for other in call.after), default=0)
        depth.setdefault(call.kind.task, level[place])
        for other in call.after:
            edges[call.kind.task].add(workload.calls[other].kind.task)
    rank = {name: (depth[name], name) for name in depth}
    return {
        name: sorted(other for other in before if rank[other] < rank[name])
        for name, before in edges.items()
    }


def lengths_of(workload: Workload) -> dict[Kind, list[float]]:
    """Return kind -> running times."""
    found: dict[Kind, list[float]] = defaultdict(list)
    for call in workload.calls:
        found[call.kind].append(call.duration_s)
    return found


def parted(workload: Workload, part: float, chance: random.Random) -> tuple[dict, Workload] | None:
    """Return the running times of a part of each task's calls, and a workload of the others."""
    seen, rows, before = {}, [], order_of(workload)
    for kind, lengths in lengths_of(workload).items():
        shuffled = chance.sample(lengths, len(lengths))
        count = max(1, round(part * len(lengths)))
        seen[kind] = shuffled[:count]
        rest = shuffled[count:]
        rows.append(TaskRow(kind.task, kind.component, rest, before[kind.task]))
    if sum(len(row.durations_s) for row in rows) < 5:
        return None
    return seen, of_tasks(workload.name, rows, workload.pools)


def remaining(
    workload: Workload, part: float, chance: random.Random
) -> tuple[dict, Workload] | None:
    """Return the running times of a part of each task's calls, and the graph of the others."""
    by_kind: dict[Kind, list[int]] = defaultdict(list)
    for place, call in enumerate(workload.calls):
        by_kind[call.kind].append(place)
    seen, gone = {}, set()
    for kind, places in by_kind.items():
        chosen = chance.sample(places, max(1, round(part * len(places))))
        seen[kind] = [workload.calls[place].duration_s for place in chosen]
        gone.update(chosen)
    kept = [place for place in range(len(workload.calls)) if place not in gone]
    if len(kept) < 5:
        return None
    position = {place: number for number, place in enumerate(kept)}
    before: dict[int, set[int]] = {}
    for place in topological(workload.calls):
        waits = [{o} if o in position else before[o] for o in workload.calls[place].after]
        before[place] = set().union(*waits)
    calls = tuple(
        workload.calls[place]._replace(after=tuple(sorted(position[o] for o in before[place])))
        for place in kept
    )
    return seen, replace(workload, calls=calls)


def spans_of(workload: Workload, workers: int) -> dict[tuple[str, str], Span]:
    """Return when the calls of each task begin and end, if they run in the order of readiness."""
    waits = [len(call.after) for call in workload.calls]
    behind: dict[int, list[int]] = defaultdict(list)
    for place, call in enumerate(workload.calls):
        for other in call.after:
            behind[other].append(place)
    free = {tag: [0.0] * workers for tag in POOLS}
    ready = [(0.0, place) for place, count in enumerate(waits) if not count]
    spans: dict[tuple[str, str], Span] = {}
    ends: dict[int, float] = {}
    while ready:
        at, place = heapq.heappop(ready)
        call = workload.calls[place]
        begin = max(at, heapq.heappop(free[call.kind.component]))
        end = ends[place] = begin + call.duration_s
        heapq.heappush(free[call.kind.component], end)
        key = call.kind.component, call.kind.task
        known = spans.get(key, Span(begin, end))
        spans[key] = Span(min(known.begin, begin), max(known.end, end))
        for other in behind[place]:
            waits[other] -= 1
            if not waits[other]:
                moment = max(ends[o] for o in workload.calls[other].after)
                heapq.heappush(ready, (moment, other))
    return spans


def varied(
    workload: Workload, variation: tuple[float, float, float], chance: random.Random
) -> Workload:
    """Return the workload with running times that vary by run, by task and by call."""
    by_run, by_task, by_call = variation
    run = chance.gauss(0, by_run)
    task = {kind: chance.gauss(0, by_task) for kind in lengths_of(workload)}

    def length(call: Call) -> float:
        return call.duration_s * math.exp(run + task[call.kind] + chance.gauss(0, by_call))

    calls = tuple(call._replace(duration_s=length(call)) for call in workload.calls)
    return replace(workload, calls=calls)


def record(
    number: int,
    seen: Mapping[Kind, Sequence[float]],
    startup_s: Sequence[float],
    spans: Mapping[tuple[str, str], Span] | None = None,
) -> EarlierRun:
    """Return the record of an earlier run."""
    calls = [
        CallRecord(kind.component, kind.task, length)
        for kind, lengths in seen.items()
        for length in lengths
    ]
    starts = tuple((tag, seconds) for tag in POOLS for seconds in startup_s)
    counts = Counter((call.tag, call.task) for call in calls)
    return EarlierRun(
        f"run-{number}",
        "t",
        "completed",
        tuple(calls),
        counts=counts,
        spans=spans or {},
        startups_s=starts,
    )


@dataclass(frozen=True)
class Work:
    """Workload to execute, with its family, the kind of case, and earlier runs."""

    family: str
    kind: str
    workload: Workload
    history: Sequence[EarlierRun]


def planned(work: Work, workers: int, delay_s: float, seed: int) -> Case:
    """Plan with the history, and execute the workload."""
    workload = work.workload
    before, lengths = order_of(workload), lengths_of(workload)
    tasks = {
        k.task: TaskSpec(k.task, k.component, count=len(found), after=tuple(before[k.task]))
        for k, found in lengths.items()
    }
    used = dict.fromkeys(k.component for k in lengths)
    spec = DeploymentSpec(
        "p",
        "t",
        "slurm",
        {tag: ComponentSpec(tag, workers=WorkerRange(workers, workers)) for tag in used},
        tasks,
    )
    plan = make_plan(spec, "0" * 64, knowledge_of(spec, work.history))
    pools = {tag: Terms(workers, workers) for tag in used}
    run = simulate(
        replace(workload, pools=pools),
        lambda _: Fixed(most=True),
        Startup(delay_s),
        every_s=1e6,
        seed=seed,
        looks_ahead=False,
    )
    assert plan.predicted_time_s is not None
    assert plan.predicted_interval_s is not None
    return Case(
        work.family,
        work.kind,
        plan.confidence,
        plan.predicted_time_s,
        plan.predicted_interval_s,
        run.makespan_s,
    )


def case(family: str, kind: str, workload: Workload, seed: str) -> Case | None:
    """Return one case; None if the workload is too small to be parted."""
    chance = random.Random(seed)
    workers, delay_s = chance.choice(WORKERS), chance.choice(STARTUPS_S)
    starts = [delay_s * chance.uniform(0.8, 1.3) for _ in range(min(workers, 8))]
    if kind == "again":
        variation = chance.choice(VARIATIONS)
        runs = [varied(workload, variation, chance) for _ in range(chance.randint(1, 4))]
        history = [
            record(n, lengths_of(run), starts, spans_of(run, workers)) for n, run in enumerate(runs)
        ]
        rest = varied(workload, variation, chance)
    else:
        part = parted if kind == "subset" else remaining
        found = part(workload, chance.choice(PARTS), chance)
        if found is None:
            return None
        history, rest = [record(0, found[0], starts)], found[1]
    return planned(Work(family, kind, rest, history), workers, delay_s, chance.randrange(10**6))
