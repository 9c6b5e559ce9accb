"""Cells of the scaling benchmark: one policy on one workload, start-up and seed."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolPolicy
from scalable.scaling.task_model import TaskModel
from scaling_workloads import Case
from simulation.reference import Reference, clairvoyant
from simulation.rules import DaskAdaptive, Fixed, HyperQueue, JgcriScalable, OpenGris, Parsl
from simulation.simulator import look_every_s, simulate
from simulation.workloads import Startup, Workload

#: Start-ups: a local worker, a cloud machine that is paid for while it boots, a batch queue.
STARTUPS = (Startup(1.0, 1.0), Startup(60.0, 60.0), Startup(600.0, 30.0))
#: Start-up time that a controller expects that has never seen a worker start.
UNKNOWN_STARTUP_S = 30.0
#: Cells (workload, start-up) whose reference is the best constant count of workers: one standing
#: worker is the best that can be known, since nothing tells when the next call comes.
BESIDE_FIXED = {("trickle", 600.0)}


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
        """Workload, start-up and seed."""
        return self.case, self.startup_s, self.seed


@dataclass(frozen=True)
class Run:
    """Cells that one process computes: of one workload, start-up and seed."""

    case: Case
    startup: Startup
    seed: int
    policies: tuple[str, ...]
    #: Whether policies expect the true start-up time from the beginning.
    tells_startup: bool = False


@lru_cache(maxsize=4)
def _made(case: Case, seed: int) -> Workload:
    return case.make(seed)


def cells_of(run: Run) -> list[Cell]:
    """Return the cells of a run; the references are computed once."""
    workload, startup = _made(run.case, run.seed), run.startup
    if (run.case.name, startup.delay_s) in BESIDE_FIXED:
        best = best_fixed(workload, startup, run.seed)
    else:
        best = clairvoyant(workload, startup)

    def cell(name: str) -> Cell:
        contender = CONTENDERS[name]
        model = TaskModel()
        if contender.warm:  # knows the calls of another seed
            model = TaskModel(history=_made(run.case, run.seed + 1000).samples())
        told = contender.warm or run.tells_startup
        expected = startup.delay_s if told else UNKNOWN_STARTUP_S
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
        return Cell(
            run.case.name,
            run.case.group,
            run.case.family,
            startup.delay_s,
            run.seed,
            name,
            outcome.time_s,
            outcome.cost,
            math.sqrt(outcome.time_s * outcome.cost / best.product),
            len(outcome.changes),
            1000 * spent / outcome.looks,
        )

    return [cell(name) for name in run.policies]


def best_fixed(workload: Workload, startup: Startup, seed: int) -> Reference:
    """Return time and cost with the constant count of workers that has the least product."""
    (most,) = {terms.maximum for terms in workload.pools.values()}
    outcomes = []
    for count in range(1, most + 1):
        pools = {
            name: replace(terms, minimum=count, maximum=count)
            for name, terms in workload.pools.items()
        }
        fixed = replace(workload, pools=pools)
        every_s = Fixed.every_s
        outcome = simulate(
            fixed,
            lambda _: Fixed(most=True),
            startup,
            every_s=every_s,
            seed=seed,
            looks_ahead=False,
        )
        outcomes.append(Reference(outcome.time_s, outcome.cost))
    return min(outcomes, key=lambda reference: reference.product)


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
    others: dict[tuple[str, float, int], list[Cell]] = {}
    for cell in cells:
        if not CONTENDERS[cell.policy].ours:
            others.setdefault(cell.place, []).append(cell)
    ours = {}
    for cell in cells:
        if CONTENDERS[cell.policy].ours:
            ours.setdefault(cell.place, []).append(cell)

    def beaten(cell: Cell) -> bool:
        rivals = others.get(cell.place, [])
        if not CONTENDERS[cell.policy].ours:
            rivals = rivals + ours.get(cell.place, [])
        return any(o.time_s < cell.time_s and o.cost < cell.cost for o in rivals)

    return [replace(cell, dominated=beaten(cell)) for cell in cells]
