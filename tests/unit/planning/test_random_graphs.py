"""Plans of random graphs: the counts are not dominated, and the interval holds."""

import itertools
import random
from statistics import median

import pytest
from plans import request, task

from scalable.planning import Knowledge, PlanRequest, draws, make_plan
from scalable.planning.draws import DRAWS, draw_runs
from scalable.planning.network import make_network
from scalable.planning.plan import most_of
from scalable.planning.work import expected_calls
from scalable.quantiles import quantile


def layers(place, chance):
    return [f"t{n}" for n in range(place) if n // 10 == place // 10 - 1]


def anything(place, chance):
    return [
        f"t{n}" for n in chance.sample(range(place), min(place, chance.choice([0, 1, 1, 2, 3])))
    ]


def chains_beside_maps(place, chance):
    if place % 2:
        return ["t0"] if place % 4 == 1 else []
    return [f"t{place - 2}"] if place % 20 else []


OBJECTIVES = ("balance", "minimize time")


def graph(before, number, pools, seed):
    chance = random.Random(seed)
    tasks = [
        task(
            f"t{place}",
            f"p{place // 10 % pools if seed % 2 else chance.randrange(pools)}",
            chance.randint(1, 30),
            chance.uniform(5, 100),
            tuple(before(place, chance)),
        )
        for place in range(number)
    ]
    return request(*tasks, options={"max_workers": 20 * pools})


def simulated(spec, workers, seed=0):
    expected = expected_calls(spec, Knowledge(), most_of(spec))
    network = make_network(expected, dict.fromkeys(spec.components, 1), {})
    return [run.time_s for run in draw_runs(network, expected, workers, seed=seed)]


CASES = itertools.product((layers, anything, chains_beside_maps), (1, 4, 10), OBJECTIVES)
#: In ``make test``, each shape with each objective and with two numbers of pools.
QUICK = {
    *((layers, 4, "balance"), (layers, 10, "minimize time"), (anything, 1, "balance")),
    *((anything, 4, "minimize time"), (chains_beside_maps, 10, "balance")),
    (chains_beside_maps, 1, "minimize time"),
}


@pytest.mark.parametrize(
    ("before", "pools", "objective"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_counts_of_a_random_graph_are_not_dominated(before, pools, objective):
    spec = graph(before, 60, pools, pools)
    plan = make_plan(spec, "", None, PlanRequest.parse(objective))
    counts = plan.scale_plan.workers_by_tag
    (own,) = (point for point in plan.front if point.workers_by_tag == counts)
    assert not any(
        point.time_s <= own.time_s and point.cost <= own.cost
        for point in plan.front
        if point is not own
    )
    low, high = plan.predicted_interval_s
    times = simulated(spec, tuple(counts.values()), seed=7)
    assert low <= median(times) <= high
    assert low <= plan.predicted_time_s <= high


def test_a_large_graph_is_simulated_less_often_with_the_same_result(monkeypatch):
    spec = graph(anything, 200, 4, 3)
    workers = (8,) * len(spec.components)
    few = sorted(simulated(spec, workers))
    monkeypatch.setattr(draws, "_WORK", 10**9)
    many = sorted(simulated(spec, workers))
    assert len(few) < DRAWS / 2 < len(many) == DRAWS
    for share in (0.1, 0.5, 0.9):
        assert quantile(few, share) == pytest.approx(quantile(many, share), rel=0.06)
