"""Makespan of graphs on fixed workers: calls by their longest remaining path, beside as submitted.

::

    python benchmarks/ordering.py --traces DIRECTORY

Simulated, on one core. ``DIRECTORY`` contains traces in WfFormat 1.5 (wfcommons.org). Each graph
runs on several fixed counts of workers that are there from the begin. ``cold``: nothing is known of
the lengths at first. ``warm``: the mean length of each task is known. A ratio is the makespan
divided by that of the order of submission; less is better.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from scalable.scaling.task_model import Kind, TaskModel
from scalable.simulation.reference import ranks_of
from scalable.simulation.result import Startup
from scalable.simulation.rules import RULES
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload, of_wfformat

COUNTS = (2, 4, 8, 16, 32)
#: Bars: geometric mean of the ratios, and the largest ratio.
MEAN_BAR, WORST_BAR = 0.97, 1.01


class Cell(NamedTuple):
    """Ratios of makespans on one graph and number of workers."""

    graph: str
    workers: int
    cold: float
    warm: float
    #: Least time that any order needs, divided by the makespan of the order of submission.
    bound: float


def makespan(work: Workload, workers: int, order: str, model: TaskModel | None = None) -> float:
    pools = {name: Terms(workers, workers) for name in work.pools}
    fixed = Workload(work.name, work.calls, pools)
    make = RULES["maximum"].make
    outcome = simulate(
        fixed, lambda _: make(), Startup(0.0, 0.0), model, looks_ahead=False, every_s=3600.0,
        order=order,
    )  # fmt: skip
    return outcome.makespan_s


def least_s(work: Workload, workers: int) -> float:
    path = max(ranks_of(work))
    return max(path, sum(call.duration_s for call in work.calls) / workers)


def measured(work: Workload, workers: int) -> Cell:
    submitted = makespan(work, workers, "submitted")
    cold = makespan(work, workers, "critical-path")
    warm = makespan(work, workers, "critical-path", TaskModel(history=work.samples()))
    least = least_s(work, workers)
    return Cell(work.name, workers, cold / submitted, warm / submitted, least / submitted)


def traces(directory: Path) -> Iterator[Workload]:
    for path in sorted(directory.glob("*.json")):
        work = of_wfformat(json.loads(path.read_text()), {"run": Terms()})
        yield Workload(path.stem, work.calls, work.pools)


def tasks(rng: random.Random, count: int) -> list[Callable[[], Call]]:
    """Return makers of calls, one for each task; lengths of a task vary by a half, tasks widely."""
    medians = [math.exp(rng.gauss(math.log(30), 1.2)) for _ in range(count)]
    return [
        lambda i=i, m=m: Call(Kind("run", f"t{i}"), m * math.exp(rng.gauss(0, 0.5)))
        for i, m in enumerate(medians)
    ]


def fork_join(rng: random.Random) -> list[Call]:
    """Four stages of different tasks; each begins when the one before has ended."""
    makers, calls, before = tasks(rng, 12), [], ()
    for stage in range(4):
        first = len(calls)
        for i in range(60):
            maker = makers[3 * stage + i % 3]
            calls.append(maker()._replace(after=before))
        before = tuple(range(first, len(calls)))
    return calls


def chains(rng: random.Random) -> list[Call]:
    """Forty chains of one to sixteen calls."""
    makers, calls = tasks(rng, 16), []
    for _ in range(40):
        for depth in range(rng.randint(1, 16)):
            after = (len(calls) - 1,) if depth else ()
            calls.append(makers[depth]()._replace(after=after))
    return calls


def in_tree(rng: random.Random) -> list[Call]:
    """A reduction of 256 calls by pairs."""
    makers, calls, level = tasks(rng, 9), [], list(range(256))
    calls += [makers[0]() for _ in level]
    depth = 0
    while len(level) > 1:
        depth += 1
        above = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            above.append(len(calls))
            calls.append(makers[depth]()._replace(after=(left, right)))
        level = above
    return calls


def out_tree(rng: random.Random) -> list[Call]:
    """Each call is followed by none to three others."""
    makers, calls = tasks(rng, 8), []
    calls.append(makers[0]())
    for place in range(300):
        if place >= len(calls):
            break
        more = rng.choice((0, 1, 2, 3)) if place else 6
        calls += [makers[rng.randrange(8)]()._replace(after=(place,)) for _ in range(more)]
    return calls


def levels(rng: random.Random) -> list[Call]:
    """Eight levels of forty calls, each of which waits for one to three of the level before."""
    makers, calls = tasks(rng, 24), []
    for level in range(8):
        for i in range(40):
            low = 40 * (level - 1)
            after = tuple(rng.sample(range(low, low + 40), rng.randint(1, 3))) if level else ()
            calls.append(makers[3 * level + i % 3]()._replace(after=after))
    return calls


def generated(seeds: int) -> Iterator[Workload]:
    for make in (fork_join, chains, in_tree, out_tree, levels):
        for seed in range(seeds):
            name = f"{make.__name__}-{seed}"
            yield Workload(name, tuple(make(random.Random(name))), {"run": Terms()})


def show(cells: list[Cell], *, each: bool) -> None:
    if each:
        print(f"{'graph':44s}{'workers':>8s}{'cold':>8s}{'warm':>8s}{'least':>8s}")
        for cell in cells:
            print(f"{cell.graph:44s}{cell.workers:8d}", end="")
            print(f"{cell.cold:8.3f}{cell.warm:8.3f}{cell.bound:8.3f}")
    for name, ratios in (("cold", [c.cold for c in cells]), ("warm", [c.warm for c in cells])):
        verdict(f"{name}, geometric mean", geometric_mean(ratios), MEAN_BAR)
        verdict(f"{name}, worst", max(ratios), WORST_BAR)
        for cell, ratio in zip(cells, ratios, strict=True):
            if ratio > WORST_BAR:
                print(f"           {cell.graph} on {cell.workers}: {ratio:.3f}")
    print(f"  no order is below {geometric_mean(c.bound for c in cells):.3f} in the geometric mean")


def verdict(what: str, reached: float, bar: float) -> None:
    print(f"  {'met   ' if reached <= bar else 'MISSED'} {what}: {reached:.3f} (bar {bar:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, help="directory of traces in WfFormat 1.5")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--seeds", type=int, default=3, help="generated graphs of each family")
    parser.add_argument("--each", action="store_true", help="show each graph and count")
    given = parser.parse_args()
    began = time.monotonic()
    groups = {"generated graphs": list(generated(given.seeds))}
    if given.traces:
        groups = {"traces": list(traces(given.traces)), **groups}
    for title, works in groups.items():
        cells = [measured(work, count) for work in works for count in given.counts]
        print(f"\n{title}: {len(works)} graphs, {', '.join(map(str, given.counts))} workers")
        show(cells, each=given.each)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
