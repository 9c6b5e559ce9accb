"""Workloads of the scaling benchmark: nine known ones, recorded traces, and generated graphs.

Nothing here is random beyond its seed: a case is the same in each run and in each process.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from scalable.scaling.task_model import Kind
from simulation.workloads import Call, Terms, Workload, long_types_in, of_wfformat

#: Pools of traces and of generated graphs: one, or two at different prices.
ONE_POOL = {"run": Terms(0, 16)}
TWO_POOLS = {"small": Terms(0, 16), "big": Terms(0, 8, price=3.0)}
#: Graphs that wfcommons generates, and its recipe for each.
RECIPES = {
    "wf-epigenomics": "EpigenomicsRecipe",
    "wf-montage": "MontageRecipe",
    "wf-1000genome": "GenomeRecipe",
    "wf-srasearch": "SrasearchRecipe",
}
RECIPE_TASKS = 400


@dataclass(frozen=True)
class Case:
    """A workload of the benchmark: its name, group and family, and how it is made from a seed."""

    name: str
    group: str
    family: str
    make: Callable[[int], Workload]


# Nine workloads: arriving calls, bags of calls, and graphs of wfcommons ---------------------------


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


def of_recipe(name: str, rng: random.Random) -> Workload:
    """Return a graph that wfcommons generates from one of its recipes."""
    import numpy as np
    from wfcommons import WorkflowGenerator
    from wfcommons.wfchef import recipes

    seed = rng.randrange(2**32)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator draws from the global one
    recipe = getattr(recipes, RECIPES[name]).from_num_tasks(RECIPE_TASKS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "workflow.json"
        WorkflowGenerator(recipe).build_workflow().write_json(path)
        document = json.loads(path.read_text())
    pools = {"small": Terms(0, 64), "big": Terms(0, 32, price=3.0)}
    return replace(of_wfformat(document, pools, long_types_in("big", "small")), name=name)


NINE: dict[str, Callable[[random.Random], Workload]] = {
    **{make.__name__: make for make in (burst2, heavytail, ramp, trickle, long60)},
    **{name: partial(of_recipe, name) for name in RECIPES},
}


def nine() -> list[Case]:
    """Return the nine workloads."""
    return [
        Case(name, "nine", name, lambda seed, n=name: NINE[n](random.Random(f"{n} {seed}")))  # type: ignore[misc]
        for name in NINE
    ]


# Recorded traces ----------------------------------------------------------------------------------


def traces(directory: Path) -> list[Case]:
    """Return two cases for each trace (WfFormat) of a directory: in one pool, and in two pools."""
    cases = []
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text())
        system = document.get("runtimeSystem", {}).get("name", "")
        family = "nf-core" if system == "Nextflow" else path.stem.split("-")[0]
        name = path.stem
        cases += [
            Case(name, "traces", family, partial(of_trace, path, name, two=False)),
            Case(
                f"{name} in two pools",
                "traces in two pools",
                family,
                partial(of_trace, path, name, two=True),
            ),
        ]
    return cases


def of_trace(path: Path, name: str, _seed: int, *, two: bool) -> Workload:
    document = json.loads(path.read_text())
    if not two:
        return replace(of_wfformat(document, ONE_POOL), name=name)
    split = long_types_in("big", "small")
    return replace(of_wfformat(document, TWO_POOLS, split), name=f"{name} in two pools")


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
    """A tree that grows from one call."""
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
