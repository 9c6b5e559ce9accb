"""Stated confidence and intervals of plans beside simulated outcomes.

::

    python benchmarks/calibration.py DIRECTORY
    python benchmarks/calibration.py DIRECTORY --each 30 --seed 7

DIRECTORY contains traces in WfFormat 1.5; without it only generated graphs are planned. Each case
makes the records of earlier runs from a part of one workload, plans the rest, and executes it:

- ``subset``: a random part of each task's calls is the earlier run; a task of the rest starts when
  all calls of the tasks before it have ended, as a manifest reads.
- ``rest``: the same, but a call starts when the calls that it waits for have ended.
- ``again``: earlier runs and the executed one are the workload with varied running times.

Nothing is fitted to the traces; the variation from run to run is assumed. The reliability table has
the mean stated confidence and the share of runs that took 0.8 to 1.25 times the predicted time;
coverage is the share of runs in the stated 80 % interval.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scalable.forecasting import knowledge_of
from scalable.model import ComponentSpec, DeploymentSpec, TaskSpec, WorkerRange
from scalable.planning import make_plan
from scalable.planning.uncertainty import BAND
from scalable.runs.history import CallRecord, EarlierRun, NameSpan
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
        return self.interval_s[0] <= self.actual_s <= self.interval_s[1]


def traces(directory: Path) -> Iterator[tuple[str, Workload]]:
    return simulated.traces(directory, POOLS, long_types_in("big", "small"))


def generated(chance: random.Random) -> tuple[str, Workload]:
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


def spans_of(workload: Workload, workers: int) -> dict[tuple[str, str], NameSpan]:
    """Return when the calls of each task begin and end, if they run in the order of readiness."""
    waits = [len(call.after) for call in workload.calls]
    behind: dict[int, list[int]] = defaultdict(list)
    for place, call in enumerate(workload.calls):
        for other in call.after:
            behind[other].append(place)
    free = {tag: [0.0] * workers for tag in POOLS}
    ready = [(0.0, place) for place, count in enumerate(waits) if not count]
    spans: dict[tuple[str, str], NameSpan] = {}
    ends: dict[int, float] = {}
    while ready:
        at, place = heapq.heappop(ready)
        call = workload.calls[place]
        begin = max(at, heapq.heappop(free[call.kind.component]))
        end = ends[place] = begin + call.duration_s
        heapq.heappush(free[call.kind.component], end)
        key = call.kind.component, call.kind.task
        known = spans.get(key, NameSpan(begin, end))
        spans[key] = NameSpan(min(known.begin, begin), max(known.end, end))
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
    seen: Mapping[Kind, Sequence[float]],
    startup_s: Sequence[float],
    spans: Mapping[tuple[str, str], NameSpan] | None = None,
) -> EarlierRun:
    calls = [
        CallRecord(kind.component, kind.task, length)
        for kind, lengths in seen.items()
        for length in lengths
    ]
    starts = tuple((tag, seconds) for tag in POOLS for seconds in startup_s)
    counts = Counter((call.tag, call.task) for call in calls)
    more = {"counts": counts, "spans": spans or {}, "startups_s": starts}
    return EarlierRun(tuple(calls), target="t", status="completed", **more)


def outcome(
    workload: Workload, history: Sequence[EarlierRun], workers: int, delay_s: float, seed: int
) -> tuple[float, float, tuple[float, float], float]:
    """Plan with the history, execute the workload, and return the last fields of a case."""
    before, lengths = order_of(workload), lengths_of(workload)
    tasks = {
        k.task: TaskSpec(k.task, k.component, count=len(found), after=tuple(before[k.task]))
        for k, found in lengths.items()
    }
    used = dict.fromkeys(k.component for k in lengths)
    components = {tag: ComponentSpec(tag, workers=WorkerRange(workers, workers)) for tag in used}
    spec = DeploymentSpec("p", "t", "slurm", components, tasks)
    plan = make_plan(spec, "0" * 64, knowledge_of(spec, history))
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
    return plan.confidence, plan.predicted_time_s, plan.predicted_interval_s, run.makespan_s


def case(family: str, kind: str, workload: Workload, seed: str) -> Case | None:
    chance = random.Random(seed)
    workers, delay_s = chance.choice(WORKERS), chance.choice(STARTUPS_S)
    starts = [delay_s * chance.uniform(0.8, 1.3) for _ in range(min(workers, 8))]
    if kind == "again":
        variation = chance.choice(VARIATIONS)
        runs = [varied(workload, variation, chance) for _ in range(chance.randint(1, 4))]
        history = [record(lengths_of(run), starts, spans_of(run, workers)) for run in runs]
        rest = varied(workload, variation, chance)
    else:
        part = parted if kind == "subset" else remaining
        found = part(workload, chance.choice(PARTS), chance)
        if found is None:
            return None
        history, rest = [record(found[0], starts)], found[1]
    seed_of_run = chance.randrange(10**6)
    return Case(family, kind, *outcome(rest, history, workers, delay_s, seed_of_run))


BINS = 5
#: Number of runs below which a bin or a group is too small to be judged.
FEW = 20


def cases(work: Iterable[tuple[str, Workload]], each: int, seed: int) -> list[Case]:
    """Return ``each`` cases of each workload and kind."""
    made = [
        case(family, kind, workload, f"{seed} {place} {workload.name} {number} {kind}")
        for place, (family, workload) in enumerate(work)
        for number in range(each)
        for kind in KINDS
    ]
    return [one for one in made if one is not None]


def table(title: str, shown: Sequence[Case]) -> None:
    print(f"\n{title}: {len(shown)} runs")
    if not shown:
        return
    print("  confidence  runs  stated  held")
    for number in range(BINS):
        found = [c for c in shown if min(BINS - 1, int(c.confidence * BINS)) == number]
        if found:
            stated, held = fmean(c.confidence for c in found), fmean(c.held for c in found)
            mark = "  off by more than 0.1" if abs(stated - held) > 0.1 else ""
            mark += "  few" if len(found) < FEW else ""
            low, high, error = number / BINS, (number + 1) / BINS, _error(held, len(found))
            print(
                f"  {low:.1f} to {high:.1f}  {len(found):4}    {stated:.2f}  "
                f"{held:.2f} +- {error:.2f}{mark}"
            )
    print(f"  {coverage(shown)}")


def coverage(shown: Sequence[Case]) -> str:
    """Return how many intervals hold, how wide they are, and how good the predictions are."""
    inside = fmean(c.inside for c in shown)
    below = fmean(c.actual_s < c.interval_s[0] for c in shown)
    above = fmean(c.actual_s > c.interval_s[1] for c in shown)
    width = math.exp(fmean(math.log(c.interval_s[1] / c.interval_s[0]) for c in shown))
    bias = math.exp(fmean(math.log(c.actual_s / c.predicted_s) for c in shown))
    few = ", few" if len(shown) < FEW else ""
    return (
        f"80 % intervals hold in {100 * inside:.0f} +- {100 * _error(inside, len(shown)):.0f} % "
        f"(below {100 * below:.0f}, above {100 * above:.0f}{few}); "
        f"high / low {width:.2f}; actual / predicted {bias:.2f}"
    )


def _error(share: float, count: int) -> float:
    """Return the standard error of a share, which is not 0 if all or none of few cases hold."""
    smoothed = (share * count + 1) / (count + 2)
    return math.sqrt(smoothed * (1 - smoothed) / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", nargs="?", type=Path, help="traces in WfFormat 1.5")
    parser.add_argument("--each", type=int, default=10, help="cases of each trace and kind")
    parser.add_argument("--graphs", type=int, default=100, help="generated graphs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    found_traces = () if given.directory is None else traces(given.directory)
    real = cases(found_traces, given.each, given.seed)
    chance = random.Random(given.seed)
    graphs = cases((generated(chance) for _ in range(given.graphs)), 1, given.seed)
    for kind in KINDS:
        table(f"traces, {kind}", [c for c in real if c.kind == kind])
        table(f"generated graphs, {kind}", [c for c in graphs if c.kind == kind])
    found = [*real, *graphs]
    print("\neach family")
    for family in sorted({c.family for c in found}):
        shown = [c for c in found if c.family == family]
        print(f"  {family:12} {len(shown):3} runs: {coverage(shown)}")
    table("traces", real)
    table("generated graphs", graphs)
    table("all", found)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
