"""What planning costs, and how far its counts are from an exact solver's.

    python benchmarks/planning.py [--rounds 5] [--exact]

Sizing: CPU time of one plan's counts and front for 50 components of up to 1,000 workers each, the
best of some rounds, without the draws for intervals; and of a whole plan with them. With --exact
(SciPy) also the gap to HiGHS: workers, weighted by their price, and cost, for the same deadline.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import fmean

from scalable.model import ComponentSpec, DeploymentSpec, Forecast, TaskSpec
from scalable.planning import OBJECTIVES, PlanRequest, make_plan
from scalable.planning.frontier import CountBounds, trace
from scalable.planning.network import make_network
from scalable.planning.objectives import Problem, choose
from scalable.planning.work import ExpectedTasks

SHAPES = ("chain", "parallel", "layers", "tree")


def instance(seed: int, shape: str, pools: int, most: int) -> Problem:
    """Pools with a task each; half of them with calls of unequal length."""
    chance = random.Random(f"{seed} {shape} {pools}")
    work = []
    for number in range(pools):
        before = {
            "chain": [f"t{number - 1}"] if number else [],
            "parallel": [],
            "layers": [f"t{i}" for i in range(pools) if i // 5 == number // 5 - 1],
            "tree": [f"t{chance.randrange(number)}"] if number else [],
        }[shape]
        length = chance.uniform(1, 100)
        uneven = Forecast(
            1.1 * length, length, 1.5 * length, 2.5 * length, samples=30, source="history"
        )
        forecast = chance.choice([Forecast.exactly(length), uneven])
        count = chance.randint(1, 3 * most)
        work.append(ExpectedTasks(f"t{number}", f"p{number}", count, forecast, tuple(before)))
    network = make_network(work, {f"p{n}": 1 for n in range(pools)}, {})
    rates = [chance.choice([1.0, chance.uniform(0.2, 5)]) for _ in work]
    return Problem(network, network, CountBounds([1] * pools, [most] * pools, None, rates))


def best_ms(rounds: int, do: Callable[[], object]) -> float:
    found = []
    for _ in range(rounds):
        began = time.process_time()
        do()
        found.append(time.process_time() - began)
    return 1000 * min(found)


def deadline(problem: Problem, share: float) -> float:
    states = trace(problem.planned, problem.bounds)
    fast, slow = problem.time_s(states[-1]), problem.time_s(states[0])
    return fast ** (1 - share) * slow**share


def sizing(rounds: int) -> None:
    print("sizing, 50 components x 1,000 workers, CPU ms (best of", rounds, "rounds)")
    for shape in SHAPES:
        problem = instance(1, shape, 50, 1000)
        limit = deadline(problem, 0.5)
        shown = []
        for objective in OBJECTIVES:
            request = PlanRequest.parse(objective, "aggressive")
            taken = best_ms(rounds, lambda p=problem, a=request, s=limit: choose(p, a, s))
            shown.append(f"{objective} {taken:.1f}")
        print(f"  {shape:10}", ", ".join(shown))


def whole(rounds: int) -> None:
    print("whole plan with intervals and reasons, CPU ms")
    chance = random.Random(1)
    for number, pools in ((1, 1), (50, 1), (50, 50), (300, 1), (300, 10)):
        components = {f"p{n}": ComponentSpec(f"p{n}") for n in range(pools)}
        for shape in ("apart", "layers", "random"):
            tasks = {}
            for n in range(number):
                layer = range(max(0, n // 10 * 10 - 10), n // 10 * 10)
                drawn = chance.sample(range(max(0, n - 30), n), min(n, chance.randint(0, 3)))
                before = {"apart": [], "layers": layer, "random": drawn}[shape]
                count = 500 if shape == "apart" else chance.randint(1, 40)
                length, after = chance.uniform(5, 100), tuple(f"t{i}" for i in before)
                tasks[f"t{n}"] = TaskSpec(
                    f"t{n}", f"p{n % pools}", count=count, duration_s=length, after=after
                )
            spec = DeploymentSpec("p", "t", "slurm", components, tasks)
            taken = best_ms(
                rounds, partial(make_plan, spec, "", None, PlanRequest.parse("balance"))
            )
            print(f"  {number:3} names {pools:3} components {shape:8} {taken:.0f}")


def gaps(most: int = 40) -> None:
    from exact_counts import exactly

    print("gap to an exact solver, percent: mean and largest")
    request = PlanRequest.parse("minimize cost", "aggressive")
    for pools in (2, 5, 10):
        for shape in SHAPES:
            costs, rates = [], []
            for seed in range(200, 206):
                problem = instance(seed, shape, pools, most)
                for share in (0.15, 0.5, 0.8):
                    limit = deadline(problem, share)
                    ours = choose(problem, request, limit).point.workers
                    best = exactly(problem, most, limit)
                    weighed = [
                        sum(r * n for r, n in zip(problem.bounds.rates, counts, strict=True))
                        for counts in (ours, best)
                    ]
                    rates.append(100 * (weighed[0] / weighed[1] - 1))
                    costs.append(100 * (problem.cost(ours) / problem.cost(best) - 1))
            print(
                f"  {pools:2} {shape:10} cost {fmean(costs):.3f} {max(costs):.3f}, "
                f"workers {fmean(rates):.3f} {max(rates):.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exact", action="store_true")
    given = parser.parse_args()
    sizing(given.rounds)
    whole(given.rounds)
    if given.exact:
        gaps()


if __name__ == "__main__":
    main()
