"""Time and cost of scaling policies, beside a schedule made with the truth.

::

    python benchmarks/scaling.py --traces DIRECTORY
    python benchmarks/scaling.py --traces DIRECTORY --groups traces --policies ours-cold --quick

Simulated. The score of a cell (workload, start-up, seed) is the square root of time times cost over
that of the clairvoyant schedule (``simulation/reference.py``). There are three groups of
workloads: five that were known while the policy was made; recorded traces, which are documents in
WfFormat in a directory (for example from github.com/wfcommons/WfInstances); and generated graphs.
Policies run cold there: they know no running times and not how long workers take to start.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean, geometric_mean

from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolPolicy
from scalable.scaling.task_model import Kind, TaskModel
from simulation.reference import clairvoyant
from simulation.rules import DaskAdaptive, Fixed, HyperQueue, JgcriScalable, OpenGris, Parsl
from simulation.simulator import look_every_s, simulate
from simulation.workloads import Call, Startup, Terms, Workload, long_types_in, of_wfformat

#: Pools of traces and of generated graphs: one, or two at different prices.
ONE_POOL = {"run": Terms(0, 16)}
TWO_POOLS = {"small": Terms(0, 16), "big": Terms(0, 8, price=3.0)}


@dataclass(frozen=True)
class Case:
    """A workload of the benchmark: its name, group and family, and how it is made from a seed."""

    name: str
    group: str
    family: str
    make: Callable[[int], Workload]


# Known workloads: arriving calls, and bags of calls ----------------------------------------------


def one_pool(name: str, calls: list[Call], maximum: int, *, stream: bool) -> Workload:
    return Workload(name, tuple(calls), {"run": Terms(0, maximum)}, stream=stream)


def burst2(rng: random.Random) -> Workload:
    kind = Kind("run", "burst")
    calls = [Call(kind, rng.expovariate(1 / 30)) for _ in range(500)]
    calls += [Call(kind, rng.expovariate(1 / 30), 1800.0) for _ in range(300)]
    return one_pool("burst2", calls, 64, stream=True)


def heavytail(rng: random.Random) -> Workload:
    kind = Kind("run", "heavy")
    calls = [Call(kind, rng.lognormvariate(math.log(60), 1.5)) for _ in range(400)]
    return one_pool("heavytail", calls, 64, stream=False)


def ramp(rng: random.Random) -> Workload:
    """Calls of 20 s; from one in 20 s to two a second within half an hour, and back."""
    calls, now, kind = [], 0.0, Kind("run", "ramp")
    while True:  # thinning of a process at the largest rate
        now += rng.expovariate(2.0)
        if now >= 3600:
            return one_pool("ramp", calls, 100, stream=True)
        rate = 0.05 + 1.95 * (1 - abs(now - 1800) / 1800)
        if rng.random() < rate / 2.0:
            calls.append(Call(kind, rng.expovariate(1 / 20), now))


def trickle(rng: random.Random) -> Workload:
    """A call of 10 s each 90 s, at random moments, for two hours."""
    calls, now, kind = [], 0.0, Kind("run", "trickle")
    for _ in range(80):
        calls.append(Call(kind, rng.expovariate(1 / 10), now))
        now += rng.expovariate(1 / 90)
    return one_pool("trickle", calls, 20, stream=True)


def long60(rng: random.Random) -> Workload:
    calls = [Call(Kind("run", "long"), rng.uniform(1800, 5400)) for _ in range(60)]
    return one_pool("long60", calls, 64, stream=False)


def known() -> list[Case]:
    return [
        Case(
            make.__name__,
            "known",
            make.__name__,
            lambda seed, make=make: make(random.Random(f"{make.__name__} {seed}")),
        )
        for make in (burst2, heavytail, ramp, trickle, long60)
    ]


# Recorded traces ----------------------------------------------------------------------------------


def traces(directory: Path) -> list[Case]:
    """Return two cases for each trace (WfFormat) of a directory: in one pool, and in two pools."""
    cases = []
    for path in sorted(directory.glob("*.json")):
        system = json.loads(path.read_text()).get("runtimeSystem", {}).get("name", "")
        family = "nf-core" if system == "Nextflow" else path.stem.split("-")[0]
        for two in (False, True):
            group = "traces in two pools" if two else "traces"
            name = path.stem + two * " in two pools"
            cases.append(Case(name, group, family, partial(of_trace, path, name, two=two)))
    return cases


def of_trace(path: Path, name: str, _seed: int, *, two: bool) -> Workload:
    document = json.loads(path.read_text())
    split = long_types_in("big", "small") if two else None
    return replace(of_wfformat(document, TWO_POOLS if two else ONE_POOL, split), name=name)


# Generated graphs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A call of a generated graph: its task, and the indices of the calls that it waits for."""

    task: str
    after: tuple[int, ...] = ()


def fork_join(rng: random.Random, size: int) -> Iterator[Node]:
    """Stages of parallel calls, each between two single calls."""
    stages = rng.randint(1, 4)
    yield Node("begin")
    place = 0
    for stage in range(stages):
        width = max(2, round(size / stages * rng.uniform(0.5, 1.5)))
        for _ in range(width):
            yield Node(f"fork {stage}", (place,))
        yield Node("join", tuple(range(place + 1, place + 1 + width)))
        place += width + 1


def chains(rng: random.Random, size: int) -> Iterator[Node]:
    """Independent chains of different lengths, and a call at the end that waits for all of them."""
    steps = rng.randint(3, max(4, round(math.sqrt(size))))
    place, last = 0, []
    while place < size:
        for step in range(rng.randint(max(1, steps // 2), steps)):
            yield Node(f"step {step}", (place - 1,) if step else ())
            place += 1
        last.append(place - 1)
    yield Node("collect", tuple(last))


def out_tree(rng: random.Random, size: int) -> Iterator[Node]:
    fan = rng.randint(2, 6)
    yield Node("node 0")
    depth = [0]
    for place in range(1, size):
        parent = (place - 1) // fan
        depth.append(depth[parent] + 1)
        yield Node(f"node {depth[place]}", (parent,))


def in_tree(rng: random.Random, size: int) -> Iterator[Node]:
    """A tree of reductions that ends with one call."""
    fan = rng.randint(2, 6)
    row = list(range(max(2, round(size * (fan - 1) / fan))))
    for _ in row:
        yield Node("leaf")
    place, depth = len(row), 0
    while len(row) > 1:
        depth += 1
        parts = [row[i : i + fan] for i in range(0, len(row), fan)]
        for part in parts:
            yield Node(f"merge {depth}", tuple(part))
        row = list(range(place, place + len(parts)))
        place += len(parts)


def levels(rng: random.Random, size: int) -> Iterator[Node]:
    """Levels of different widths; a call waits for one to three calls of the level before."""
    count = rng.randint(3, 8)
    shares = [rng.lognormvariate(0, 1) for _ in range(count)]
    before: list[int] = []
    place = 0
    for level, share in enumerate(shares):
        width = max(1, round(size * share / sum(shares)))
        for _ in range(width):
            parents = rng.sample(before, min(len(before), rng.randint(1, 3)))
            yield Node(f"level {level}", tuple(parents))
        before = list(range(place, place + width))
        place += width


SHAPES: dict[str, Callable[[random.Random, int], Iterator[Node]]] = {
    "fork-join": fork_join,
    "chains": chains,
    "in-trees": in_tree,
    "out-trees": out_tree,
    "levels": levels,
}
#: Approximate number of calls, and their median seconds: one graph of each family for each pair.
SIZES = ((300, 0.1), (200, 1.0), (60, 8.0), (200, 20.0), (100, 120.0), (40, 600.0))
#: Deviation of the logarithms of running times, between tasks and between the calls of a task.
TASK_SPREAD, CALL_SPREAD = 0.8, 0.9


def generated() -> list[Case]:
    """Return graphs of each family in several sizes and scales, every other one in two pools."""
    return [
        Case(
            f"{family} of {size} x {seconds:g} s",
            "generated",
            family,
            partial(of_shape, family, size, seconds, two=(number + row) % 2 == 1),
        )
        for row, family in enumerate(SHAPES)
        for number, (size, seconds) in enumerate(SIZES)
    ]


def of_shape(family: str, size: int, median_s: float, seed: int, *, two: bool) -> Workload:
    """Return a generated graph with running times of heavy tails."""
    name = f"{family} of {size} x {median_s:g} s"
    rng = random.Random(f"{name} {seed}")
    nodes = list(SHAPES[family](rng, size))
    typical = {
        task: median_s * rng.lognormvariate(0, TASK_SPREAD)
        for task in dict.fromkeys(node.task for node in nodes)
    }
    lengths = [typical[node.task] * rng.lognormvariate(0, CALL_SPREAD) for node in nodes]
    homes = _homes(nodes, lengths) if two else dict.fromkeys(typical, "run")
    calls = [
        Call(Kind(homes[node.task], node.task), length, after=node.after)
        for node, length in zip(nodes, lengths, strict=True)
    ]
    return Workload(name, tuple(calls), TWO_POOLS if two else ONE_POOL)


def _homes(nodes: Sequence[Node], lengths: Sequence[float]) -> dict[str, str]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for node, length in zip(nodes, lengths, strict=True):
        by_task[node.task].append(length)
    split = long_types_in("big", "small")
    return dict(split({task: (fmean(all_s), sum(all_s)) for task, all_s in by_task.items()}))


#: Start-ups: a local worker, a cloud machine that is paid for while it boots, a batch queue.
STARTUPS = (Startup(1.0, 1.0), Startup(60.0, 60.0), Startup(600.0, 30.0))
#: Start-up time that a controller expects that has never seen a worker start.
UNKNOWN_STARTUP_S = 30.0


@dataclass(frozen=True)
class Contender:
    """A policy and how it is run."""

    make: Callable[[], PoolPolicy]
    every_s: float | None = None
    warm: bool = False
    ours: bool = False


CONTENDERS = {
    "static-1": Contender(lambda: Fixed(most=False), Fixed.every_s),
    "static-max": Contender(lambda: Fixed(most=True), Fixed.every_s),
    "dask-adaptive": Contender(DaskAdaptive, DaskAdaptive.every_s),
    "parsl-simple": Contender(Parsl, Parsl.every_s),
    "parsl-htex": Contender(lambda: Parsl(scales_in=True), Parsl.every_s),
    "hyperqueue": Contender(HyperQueue, HyperQueue.every_s),
    "opengris": Contender(OpenGris, OpenGris.every_s),
    "jgcri": Contender(JgcriScalable, JgcriScalable.every_s),
    "ours-cold": Contender(PoolScaler, ours=True),
    "ours-warm": Contender(PoolScaler, warm=True, ours=True),
}


@dataclass(frozen=True)
class Cell:
    """Result of one policy on one workload, start-up and seed."""

    case: str
    group: str
    family: str
    startup_s: float
    seed: int
    policy: str
    time_s: float
    cost: float
    score: float
    changes: int
    look_ms: float
    dominated: bool = False

    @property
    def place(self) -> tuple[str, float, int]:
        return self.case, self.startup_s, self.seed


@dataclass(frozen=True)
class Run:
    """Cells that one process computes: of one workload, start-up and seed."""

    case: Case
    startup: Startup
    seed: int
    policies: tuple[str, ...]


@lru_cache(maxsize=4)
def _made(case: Case, seed: int) -> Workload:
    return case.make(seed)


def cells_of(run: Run) -> list[Cell]:
    """Return the cells of a run; the references are computed once."""
    workload, startup = _made(run.case, run.seed), run.startup
    best = clairvoyant(workload, startup)

    def cell(name: str) -> Cell:
        contender = CONTENDERS[name]
        model = TaskModel()
        if contender.warm:  # knows the calls of another seed
            model = TaskModel(history=_made(run.case, run.seed + 1000).samples())
        expected = startup.delay_s if contender.warm else UNKNOWN_STARTUP_S
        began = time.process_time()
        outcome = simulate(
            workload,
            lambda _: contender.make(),
            replace(startup, expected_s=expected),
            model,
            every_s=contender.every_s or look_every_s(startup.delay_s),
            seed=run.seed,
            looks_ahead=contender.ours,
        )
        spent = time.process_time() - began
        score = math.sqrt(outcome.time_s * outcome.cost / best.product)
        where = run.case.name, run.case.group, run.case.family, startup.delay_s, run.seed, name
        looks = len(outcome.changes), 1000 * spent / outcome.looks
        return Cell(*where, outcome.time_s, outcome.cost, score, *looks)

    return [cell(name) for name in run.policies]


_runs: Sequence[Run] = ()


def _numbered(number: int) -> list[Cell]:
    return cells_of(_runs[number])


def all_cells(runs: Sequence[Run], processes: int) -> list[Cell]:
    """Return the cells of all runs, computed by several processes; show progress on stderr."""
    global _runs  # noqa: PLW0603 - inherited by the forked processes: cases cannot be pickled
    _runs = runs
    if processes == 1:
        return list(_shown(map(_numbered, range(len(runs))), len(runs)))
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return list(_shown(pool.imap(_numbered, range(len(runs))), len(runs)))


def _shown(results: Iterable[list[Cell]], runs: int) -> Iterator[Cell]:
    began = shown = time.monotonic()
    for number, cells in enumerate(results, 1):
        yield from cells
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{number} of {runs} runs, {shown - began:.0f} s", file=sys.stderr)


def marked(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, with those marked where another policy was quicker and cheaper at once."""
    at: dict[tuple[str, float, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        at[cell.place].append(cell)

    def beaten(cell: Cell) -> bool:
        mine = CONTENDERS[cell.policy].ours
        rivals = (o for o in at[cell.place] if not (mine and CONTENDERS[o.policy].ours))
        return any(o.time_s < cell.time_s and o.cost < cell.cost for o in rivals)

    return [replace(cell, dominated=beaten(cell)) for cell in cells]


#: Bars: geometric mean, beside the best of the others, worst cell, dominated share.
BARS = {"known": 1.15, "all": 1.10, "beside": 1.005, "worst": 1.5, "dominated": 0.05}


def mean(cells: Iterable[Cell]) -> float:
    scores = [cell.score for cell in cells]
    return geometric_mean(scores) if scores else math.nan


def show_scores(title: str, cells: Sequence[Cell], policies: Sequence[str]) -> None:
    """Print, for each start-up, the geometric means of each policy in each column."""
    columns = list(dict.fromkeys(cell.family for cell in cells))
    for startup_s in sorted({cell.startup_s for cell in cells}):
        here = [cell for cell in cells if cell.startup_s == startup_s]
        print(f"\n{title}, start-up {startup_s:g} s: score, geometric means")
        heads = (name[:11] for name in columns)
        print(f"{'':14s}" + "".join(f"{name:>12s}" for name in heads) + f"{'all':>8s}{'worst':>8s}")
        for name in policies:
            mine = [c for c in here if c.policy == name]
            if not mine:
                continue
            by = [mean(c for c in mine if c.family == each) for each in columns]
            print(f"{name:14s}" + "".join(f"{score:12.2f}" for score in by), end="")
            print(f"{mean(mine):8.3f}{max(c.score for c in mine):8.2f}")


def show_summary(cells: Sequence[Cell], policies: Sequence[str]) -> None:
    print("\nall of them")
    heads = ("score", "worst", "dominated", "changes", "ms/look")
    widths = (8, 8, 12, 9, 9)
    print(f"{'':14s}" + "".join(f"{h:>{w}s}" for h, w in zip(heads, widths, strict=True)))
    for name in policies:
        mine = [c for c in cells if c.policy == name]
        if not mine:
            continue
        print(
            f"{name:14s}{mean(mine):8.3f}{max(c.score for c in mine):8.2f}"
            f"{sum(c.dominated for c in mine):6d}/{len(mine):<5d}"
            f"{sum(c.changes for c in mine) / len(mine):9.0f}"
            f"{sum(c.look_ms for c in mine) / len(mine):9.3f}"
        )


def show_bars(title: str, mine: Sequence[Cell], cells: Sequence[Cell]) -> None:
    """Print the verdicts on cells of the policy, beside all cells of the others."""
    if not mine:
        return
    print(f"\nbars: {title}")
    verdict("geometric mean", mean(mine), BARS.get(title, BARS["all"]))
    places = {cell.place for cell in mine}
    for startup_s in sorted({cell.startup_s for cell in mine}):
        here = [c for c in mine if c.startup_s == startup_s]
        others = {
            name: mean(
                c
                for c in cells
                if c.policy == name and c.place in places and c.startup_s == startup_s
            )
            for name, contender in CONTENDERS.items()
            if not contender.ours and any(c.policy == name for c in cells)
        }
        if others:
            best = min(others, key=lambda name: others[name])
            what = f"start-up {startup_s:g} s: {mean(here):.3f} beside {best}'s {others[best]:.3f}"
            verdict(what, mean(here) / others[best], BARS["beside"])
    worst = max(mine, key=lambda c: c.score)
    verdict(f"worst cell ({_named(worst)})", worst.score, BARS["worst"])
    verdict("share of dominated cells", _dominated(mine), BARS["dominated"])


def _dominated(cells: Sequence[Cell]) -> float:
    return sum(cell.dominated for cell in cells) / len(cells)


def _named(cell: Cell) -> str:
    return f"{cell.case}, {cell.startup_s:g} s, seed {cell.seed}"


def verdict(what: str, reached: float, bar: float) -> None:
    print(f"  {'met   ' if reached <= bar else 'MISSED'} {what}: {reached:.3f} (bar {bar:g})")


GROUPS = ("known", "traces", "traces in two pools", "generated")


def cases_of(options: argparse.Namespace) -> list[Case]:
    cases = known() + generated()
    if options.traces is not None:
        cases += traces(options.traces)
        if not any(case.group == "traces" for case in cases):
            sys.exit(f"{options.traces} has no document in WfFormat (*.json)")
    return [c for c in cases if c.group in options.groups and options.only in c.name]


def runs_of(options: argparse.Namespace, cases: Sequence[Case]) -> list[Run]:
    """Return what is to be computed; the longest runs come first."""
    cold = tuple(name for name in options.policies if not CONTENDERS[name].warm)
    return [
        Run(case, startup, seed, tuple(options.policies) if case.group == "known" else cold)
        for case in cases
        for startup in STARTUPS
        if startup.delay_s in options.startups
        for seed in (options.seeds if case.group == "known" else options.seeds[:1])
    ]


def show(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    mine = [cell for cell in cells if cell.policy == "ours-cold"]
    for group in GROUPS:
        if here := [cell for cell in cells if cell.group == group]:
            show_scores(group, here, options.policies)
            show_summary(here, options.policies)
    for group in GROUPS:
        show_bars(group, [cell for cell in mine if cell.group == group], cells)
    if mine:
        show_bars("all together", mine, cells)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, help="directory of traces in WfFormat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of the known ones")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--only", default="", help="workloads whose names contain this")
    parser.add_argument("--policies", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--startups", type=float, nargs="+", default=[s.delay_s for s in STARTUPS])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path, help="write every cell there")
    options = parser.parse_args()
    if options.quick:
        options.seeds = options.seeds[:1]
    return options


def main() -> None:
    options = options_of()
    began = time.monotonic()
    cases = cases_of(options)
    cells = marked(all_cells(runs_of(options, cases), options.processes))
    if not cells:
        sys.exit("no workload is left")
    show(cells, options)
    print(f"\n{len(cells)} simulations in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    main()
