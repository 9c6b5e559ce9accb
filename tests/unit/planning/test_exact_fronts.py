"""The fewest workers for a deadline, beside those of an exact solver (HiGHS, through SciPy)."""

import random
from statistics import fmean

import pytest
from plans import calls, problem

from scalable.model import Forecast
from scalable.planning import PlanRequest
from scalable.planning.frontier import trace
from scalable.planning.objectives import choose

MOST = 30
SHAPES = ("chain", "parallel", "layers", "tree")


def instance(seed, shape, pools):
    chance = random.Random(f"{seed} {shape} {pools}")
    work = []
    for number in range(pools):
        length = chance.uniform(1, 100)
        before = {
            "chain": [f"t{number - 1}"] if number else [],
            "parallel": [],
            "layers": [f"t{i}" for i in range(pools) if i // 2 == number // 2 - 1],
            "tree": [f"t{chance.randrange(number)}"] if number else [],
        }[shape]
        uneven = Forecast(
            1.1 * length, length, 1.5 * length, 2.5 * length, samples=30, source="history"
        )
        forecast = chance.choice([length, uneven])
        work.append(calls(f"t{number}", f"p{number}", chance.randint(1, 90), forecast, before))
    rates = [chance.choice([1.0, chance.uniform(0.2, 5)]) for _ in work]
    return problem(work, most=MOST, rates=rates)


@pytest.mark.parametrize(
    "seeds", [[0], pytest.param([1, 2, 3, 4, 5], marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gap_to_an_exact_solver_is_at_most_one_percent(shape, seeds):
    from exact_counts import exactly  # SciPy: not where tests are only collected

    costs, rates = [], []
    for seed in seeds:
        for pools in (2, 4, 6):
            given = instance(seed, shape, pools)
            states = trace(given.planned, given.bounds)
            fast, slow = given.time_s(states[-1]), given.time_s(states[0])
            for share in (0.2, 0.6):
                deadline_s = fast ** (1 - share) * slow**share
                request = PlanRequest.parse("minimize cost", "aggressive")
                ours = choose(given, request, deadline_s).point.workers
                best = exactly(given, MOST, deadline_s)
                assert given.time_s(ours) <= deadline_s * (1 + 1e-6)
                costs.append(given.cost(ours) / given.cost(best) - 1)
                rates.append(rate(given, ours) / rate(given, best) - 1)
    assert fmean(costs) <= 0.01
    assert fmean(rates) <= 0.01
    assert max(costs) <= 0.02


def rate(given, workers):
    return sum(r * n for r, n in zip(given.bounds.rates, workers, strict=True))
