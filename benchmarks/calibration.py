"""Stated confidence and intervals of plans beside simulated outcomes.

::

    python benchmarks/calibration.py DIRECTORY
    python benchmarks/calibration.py DIRECTORY --each 10 --families

DIRECTORY contains traces in WfFormat 1.5; without it only generated graphs are planned. Each case
takes one workload, makes the records of earlier runs from a part of it, plans with them, and
executes the rest in the simulator. The constants of ``planning/lengths.py`` were chosen while
looking at seed 1 of these cases, with all families, so that no family was left out.

- ``subset``: a random part of each task's calls is the earlier run, and the others are executed.
  A task starts when the tasks before it have ended, as in a manifest.
- ``again``: one to four earlier runs and the executed one are the workload with running times that
  vary from run to run (all calls, and all calls of a task) and from call to call. Each call starts
  when the calls that it waits for have ended.

The reliability table has the mean stated confidence and the share of runs that took 0.8 to 1.25
times the predicted time, for five bins of confidence; coverage is the share of runs in the stated
80 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scalable.forecasting import knowledge_of
from scalable.planning import make_plan
from scalable.planning.uncertainty import BAND
from scalable.scaling.task_model import Kind
from scalable.simulation.result import Startup
from scalable.simulation.rules import Fixed
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import (
    Call,
    TaskRow,
    Terms,
    Workload,
    long_types_in,
    of_tasks,
    of_wfformat,
    topological,
)
from scalable.spec import ComponentSpec, DeploymentSpec, TaskSpec, WorkerRange
from scalable.telemetry import CallRecord, EarlierRun

POOLS = {"big": Terms(), "small": Terms()}
WORKERS = (2, 4, 8, 16, 32)
STARTUPS_S = (1.0, 10.0, 60.0)
PARTS = (0.05, 0.1, 0.3, 0.5)
#: Standard deviations of logarithms: of a factor of a run, of a task in a run, and of a call.
VARIATIONS = ((0.0, 0.0, 0.05), (0.05, 0.05, 0.1), (0.1, 0.1, 0.2), (0.2, 0.1, 0.2))
BINS = 5


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


def family_of(name: str) -> str:
    """Return the part of a trace's name before the place where it was recorded."""
    return name.split("-", maxsplit=1)[0]


def traces(directory: Path) -> Iterator[tuple[str, Workload]]:
    """Yield family and workload of each trace in a directory."""
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text())
        yield family_of(path.stem), of_wfformat(document, POOLS, long_types_in("big", "small"))


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
            rows.append(TaskRow(f"l{level}", tag, count, lengths(count, spread), before))
        return family, of_tasks(family, rows, POOLS)
    if family == "heavy-tailed":
        spread = chance.choice([1.0, 1.5])
    rows = [
        TaskRow("split", "small", 1, lengths(1, 0.1)),
        TaskRow("work", "big", width, lengths(width, spread), ["split"]),
        TaskRow("join", "small", 1, lengths(1, 0.1), ["work"]),
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
        rows.append(TaskRow(kind.task, kind.component, len(rest), rest, before[kind.task]))
    if sum(row.count for row in rows) < 5:
        return None
    return seen, of_tasks(workload.name, rows, workload.pools)


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
    number: int, seen: dict[Kind, Sequence[float]], startup_s: Sequence[float]
) -> EarlierRun:
    """Return the record of an earlier run."""
    calls = [
        CallRecord(kind.component, kind.task, length)
        for kind, lengths in seen.items()
        for length in lengths
    ]
    starts = tuple((tag, seconds) for tag in POOLS for seconds in startup_s)
    return EarlierRun(f"run-{number}", "t", "completed", tuple(calls), startups_s=starts)


def planned(
    family: str,
    kind: str,
    workload: Workload,
    history: Sequence[EarlierRun],
    workers: int,
    delay_s: float,
    seed: int,
) -> Case:
    """Plan with the history, and execute the workload."""
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
    return Case(
        family, kind, plan.confidence, plan.predicted_time_s, plan.predicted_interval_s,
        run.makespan_s,
    )  # fmt: skip


def case(family: str, kind: str, workload: Workload, seed: str) -> Case | None:
    """Return one case; None if the workload is too small to be parted."""
    chance = random.Random(seed)
    workers, delay_s = chance.choice(WORKERS), chance.choice(STARTUPS_S)
    starts = [delay_s * chance.uniform(0.8, 1.3) for _ in range(min(workers, 8))]
    if kind == "subset":
        found = parted(workload, chance.choice(PARTS), chance)
        if found is None:
            return None
        history, rest = [record(0, found[0], starts)], found[1]
    else:
        variation = chance.choice(VARIATIONS)
        runs = [varied(workload, variation, chance) for _ in range(chance.randint(1, 4))]
        history = [record(n, lengths_of(run), starts) for n, run in enumerate(runs)]
        rest = varied(workload, variation, chance)
    return planned(family, kind, rest, history, workers, delay_s, chance.randrange(10**6))


def cases(directory: Path | None, each: int, seed: int) -> list[Case]:
    """Return ``each`` cases of each trace and kind, and as many of generated graphs."""
    chance = random.Random(seed)
    found = [] if directory is None else list(traces(directory))
    work = [(family, workload, n) for family, workload in found for n in range(each)]
    work += [(*generated(chance), n) for n in range(each * max(15, len(found)))]
    made = [
        case(family, kind, workload, f"{seed} {place} {kind}")
        for place, (family, workload, _) in enumerate(work)
        for kind in ("subset", "again")
    ]
    return [one for one in made if one is not None]


def table(title: str, shown: Sequence[Case]) -> None:
    """Print the reliability table and the coverage."""
    print(f"\n{title}: {len(shown)} runs")
    if not shown:
        return
    print("  confidence  runs  stated  held")
    for number in range(BINS):
        found = [c for c in shown if min(BINS - 1, int(c.confidence * BINS)) == number]
        if found:
            stated, held = fmean(c.confidence for c in found), fmean(c.held for c in found)
            mark = "" if abs(stated - held) <= 0.1 or len(found) < 20 else "  off by more than 0.1"
            low, high = number / BINS, (number + 1) / BINS
            print(f"  {low:.1f} to {high:.1f}  {len(found):4}    {stated:.2f}  {held:.2f}{mark}")
    below = fmean(c.actual_s < c.interval_s[0] for c in shown)
    above = fmean(c.actual_s > c.interval_s[1] for c in shown)
    width = math.exp(fmean(math.log(c.interval_s[1] / c.interval_s[0]) for c in shown))
    bias = math.exp(fmean(math.log(c.actual_s / c.predicted_s) for c in shown))
    print(
        f"  80 % intervals hold in {100 * fmean(c.inside for c in shown):.0f} % "
        f"(below {100 * below:.0f}, above {100 * above:.0f}); "
        f"high / low {width:.2f}; actual / predicted {bias:.2f}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", nargs="?", type=Path, help="traces in WfFormat 1.5")
    parser.add_argument("--each", type=int, default=10, help="cases of each trace and kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", action="store_true", help="one table for each family, too")
    given = parser.parse_args()
    began = time.perf_counter()
    found = cases(given.directory, given.each, given.seed)
    real = (
        {family_of(path.stem) for path in given.directory.glob("*.json")}
        if given.directory
        else set()
    )
    for kind in ("subset", "again"):
        table(f"traces, {kind}", [c for c in found if c.kind == kind and c.family in real])
        table(
            f"generated graphs, {kind}",
            [c for c in found if c.kind == kind and c.family not in real],
        )
    if given.families:
        for family in sorted({c.family for c in found}):
            for kind in ("subset", "again"):
                table(
                    f"{family}, {kind}", [c for c in found if (c.family, c.kind) == (family, kind)]
                )
    table("all", found)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
