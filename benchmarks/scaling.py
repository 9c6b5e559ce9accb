"""Time and cost of scaling policies on nine workloads, beside a schedule made with the truth.

::

    python benchmarks/scaling.py --seeds 1 2
    python benchmarks/scaling.py --quick

Simulated, on one core. The score of a cell (workload, start-up, seed) is the square root of time
times cost over that of the clairvoyant schedule (``scalable.simulation.reference``). Four workloads
are graphs made by wfcommons, which has to be installed: ``pip install wfcommons``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from scalable.scaling.policy import PoolScaler, look_every_s
from scalable.scaling.pool_policy import PoolPolicy
from scalable.scaling.task_model import Kind, TaskModel
from scalable.simulation.reference import Reference, clairvoyant, lower_bounds
from scalable.simulation.result import Startup
from scalable.simulation.rules import (
    DaskAdaptive,
    Fixed,
    HyperQueue,
    JgcriScalable,
    OpenGris,
    Parsl,
)
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload, long_types_in, of_wfformat

#: Start-ups: a local worker, a cloud machine that is paid for while it boots, a batch queue.
STARTUPS = (Startup(1.0, 1.0), Startup(60.0, 60.0), Startup(600.0, 30.0))
#: What a controller expects that has never seen a worker start.
UNKNOWN_STARTUP_S = 30.0
GRAPHS = {
    "wf-epigenomics": "EpigenomicsRecipe",
    "wf-montage": "MontageRecipe",
    "wf-1000genome": "GenomeRecipe",
    "wf-srasearch": "SrasearchRecipe",
}
GRAPH_TASKS = 400
#: The bars: geometric means of the two ours, the worst cell, dominated share, worse than Dask's.
BARS = {"warm": 1.10, "cold": 1.15, "worst": 1.35, "dominated": 0.05, "dask": 1.02}


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


def graph(name: str) -> Callable[[random.Random], Workload]:
    def make(rng: random.Random) -> Workload:
        try:
            import numpy as np
            from wfcommons import WorkflowGenerator
            from wfcommons.wfchef import recipes
        except ImportError as error:
            sys.exit(f"{error}; the four graphs need it: pip install wfcommons")
        seed = rng.randrange(2**32)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the generator draws from the global one
        recipe = getattr(recipes, GRAPHS[name]).from_num_tasks(GRAPH_TASKS)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "workflow.json"
            WorkflowGenerator(recipe).build_workflow().write_json(path)
            document = json.loads(path.read_text())
        pools = {"small": Terms(0, 64), "big": Terms(0, 32, price=3.0)}
        workload = of_wfformat(document, pools, long_types_in("big", "small"))
        return Workload(name, workload.calls, pools)

    return make


WORKLOADS: dict[str, Callable[[random.Random], Workload]] = {
    "burst2": burst2,
    "heavytail": heavytail,
    "ramp": ramp,
    "trickle": trickle,
    "long60": long60,
    **{name: graph(name) for name in GRAPHS},
}


def made(name: str, seed: int) -> Workload:
    return WORKLOADS[name](random.Random(f"{name} {seed}"))


@dataclass(frozen=True)
class Cell:
    """What one policy reached on one workload, start-up and seed."""

    workload: str
    startup_s: float
    seed: int
    policy: str
    time_s: float
    cost: float
    score: float
    changes: int
    #: The same beside a clairvoyant that takes calls in the order of the simulator.
    score_in_order: float
    look_ms: float
    dominated: bool = False


def run_cell(
    workload: Workload, earlier: Workload, startup: Startup, seed: int, names: list[str]
) -> list[Cell]:
    best = clairvoyant(workload, startup)
    in_order = clairvoyant(workload, startup, ranked=False)
    cells = []
    for name in names:
        contender = CONTENDERS[name]
        history = earlier.samples() if contender.warm else ()
        expected = startup.delay_s if contender.warm else UNKNOWN_STARTUP_S
        began = time.process_time()
        outcome = simulate(
            workload,
            lambda _, make=contender.make: make(),
            Startup(startup.delay_s, startup.billed_s, expected_s=expected),
            TaskModel(history=history),
            every_s=contender.every_s or look_every_s(startup.delay_s),
            seed=seed,
            looks_ahead=contender.ours,
        )
        spent = time.process_time() - began
        reached = Reference(outcome.time_s, outcome.cost)
        cells.append(
            Cell(
                workload.name,
                startup.delay_s,
                seed,
                name,
                outcome.time_s,
                outcome.cost,
                math.sqrt(reached.product / best.product),
                len(outcome.changes),
                math.sqrt(reached.product / in_order.product),
                1000 * spent / outcome.looks,
            )
        )
    return cells


def marked(cells: list[Cell]) -> list[Cell]:
    """The cells, with those marked where another policy was quicker and cheaper at once.

    The two of ours do not dominate each other.
    """
    groups = defaultdict(list)
    for cell in cells:
        groups[cell.workload, cell.startup_s, cell.seed].append(cell)

    def beaten(cell: Cell) -> bool:
        return any(
            other.time_s < cell.time_s and other.cost < cell.cost
            for other in groups[cell.workload, cell.startup_s, cell.seed]
            if not (CONTENDERS[other.policy].ours and CONTENDERS[cell.policy].ours)
        )

    return [Cell(**{**cell.__dict__, "dominated": beaten(cell)}) for cell in cells]


def mean(cells: list[Cell]) -> float:
    return geometric_mean(cell.score for cell in cells) if cells else math.nan


def show(cells: list[Cell], workloads: list[str], names: list[str]) -> None:
    for startup_s in sorted({cell.startup_s for cell in cells}):
        print(f"\nstart-up {startup_s:g} s: score, geometric mean of the seeds")
        print(
            f"{'':14s}" + "".join(f"{name.removeprefix('wf-'):>12s}" for name in workloads), end=""
        )
        print(f"{'all':>8s}{'worst':>8s}")
        for name in names:
            mine = [c for c in cells if c.policy == name and c.startup_s == startup_s]
            by = [mean([c for c in mine if c.workload == workload]) for workload in workloads]
            print(f"{name:14s}" + "".join(f"{score:12.2f}" for score in by), end="")
            print(f"{mean(mine):8.3f}{max(c.score for c in mine):8.2f}")
    print("\nall cells; 'in order' beside a clairvoyant that takes calls first come, first served")
    print(
        f"{'':14s}{'score':>8s}{'in order':>9s}{'worst':>8s}{'dominated':>12s}{'changes':>9s}",
        end="",
    )
    print(f"{'ms/look':>9s}")
    for name in names:
        mine = [c for c in cells if c.policy == name]
        in_order = geometric_mean(c.score_in_order for c in mine)
        print(
            f"{name:14s}{mean(mine):8.3f}{in_order:9.3f}{max(c.score for c in mine):8.2f}", end=""
        )
        print(f"{sum(c.dominated for c in mine):6d}/{len(mine):<5d}", end="")
        print(f"{sum(c.changes for c in mine) / len(mine):9.0f}", end="")
        print(f"{sum(c.look_ms for c in mine) / len(mine):9.3f}")


def show_bars(cells: list[Cell]) -> None:
    print("\nbars")
    for name, bar in (("ours-warm", BARS["warm"]), ("ours-cold", BARS["cold"])):
        mine = [c for c in cells if c.policy == name]
        if not mine:
            continue
        worst = max(mine, key=lambda c: c.score)
        verdict(f"{name}: geometric mean", mean(mine), bar)
        where = f"{worst.workload}, {worst.startup_s:g} s, seed {worst.seed}"
        verdict(f"{name}: worst cell ({where})", worst.score, BARS["worst"])
        share = sum(c.dominated for c in mine) / len(mine)
        verdict(f"{name}: share of dominated cells", share, BARS["dominated"])
        dask = {
            (c.workload, c.seed): c.score
            for c in cells
            if c.policy == "dask-adaptive" and c.startup_s == 1.0
        }
        ratios = {
            key: c.score / dask[key]
            for c in mine
            if c.startup_s == 1.0 and (key := (c.workload, c.seed)) in dask
        }
        if ratios:
            key = max(ratios, key=lambda k: ratios[k])
            verdict(
                f"{name}: beside Dask at 1 s ({key[0]}, seed {key[1]})", ratios[key], BARS["dask"]
            )


def verdict(what: str, reached: float, bar: float) -> None:
    print(f"  {'met   ' if reached <= bar else 'MISSED'} {what}: {reached:.3f} (bar {bar:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, no graphs, fewer policies")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--policies", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--startups", type=float, nargs="+", default=[s.delay_s for s in STARTUPS])
    parser.add_argument("--json", type=Path, help="write every cell there")
    given = parser.parse_args()
    if given.quick:
        given.seeds = given.seeds[:1]
        given.workloads = [name for name in given.workloads if name not in GRAPHS]
        given.policies = ["static-max", "dask-adaptive", "ours-cold", "ours-warm"]
    cells: list[Cell] = []
    began = time.monotonic()
    bounds = []
    for seed in given.seeds:
        for name in given.workloads:
            # Another seed's calls are what a warm model knows.
            workload, earlier = made(name, seed), made(name, seed + 1000)
            for startup in STARTUPS:
                if startup.delay_s in given.startups:
                    cells += run_cell(workload, earlier, startup, seed, given.policies)
                    best, least = clairvoyant(workload, startup), lower_bounds(workload, startup)
                    bounds.append((best.time_s / least.time_s, best.cost / least.cost))
    cells = marked(cells)
    show(cells, given.workloads, given.policies)
    show_bars(cells)
    print(
        f"\nthe clairvoyant schedule beside the least time and the least cost, each by itself: "
        f"{geometric_mean(t for t, _ in bounds):.2f}, {geometric_mean(c for _, c in bounds):.2f}"
    )
    print(f"{len(cells)} simulations in {time.monotonic() - began:.0f} s")
    if given.json:
        given.json.write_text(json.dumps([cell.__dict__ for cell in cells], indent=1))


if __name__ == "__main__":
    main()
