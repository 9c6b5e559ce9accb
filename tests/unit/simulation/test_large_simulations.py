"""Simulations of many calls: forecasts that are not made anew for each decision; pinned results."""

from __future__ import annotations

import math
import random

import pytest

from scalable.scaling import readiness
from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import Expectation, Kind, TaskModel
from scalable.simulation import simulator
from scalable.simulation.result import Startup
from scalable.simulation.rules import RULES
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload

FIRST, SECOND = Kind("run", "first"), Kind("run", "second")
EXPECTED = {("run", "first"): Expectation(10.0), ("run", "second"): Expectation(10.0)}
#: Number of outlooks while lengths are stated but not measured.
OUTLOOKS = 3


class Watcher:
    """Four workers; it keeps the views of the pool."""

    def __init__(self) -> None:
        self.views: list[PoolView] = []

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        self.views.append(view)
        return PoolDecision(4, "four")


def pairs(count: int, *, arrival_s: float = 0.0) -> Workload:
    """Return calls of 10 s, each of which another one waits for."""
    calls = [Call(FIRST, 10.0) for _ in range(count)]
    calls += [Call(SECOND, 10.0, arrival_s, after=(place,)) for place in range(count)]
    return Workload("pairs", tuple(calls), {"run": Terms(0, 4)})


def watched(work: Workload) -> list[PoolView]:
    watcher = Watcher()
    simulate(work, lambda _: watcher, Startup(1.0), TaskModel(EXPECTED), every_s=5.0)
    return watcher.views


def test_each_blocked_call_is_forecast_once_between_two_computations(monkeypatch):
    made = []

    def counted(*arguments: object) -> readiness.Coming:
        made.append(arguments)
        return readiness.coming(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(simulator, "coming", counted)
    views = watched(pairs(600))
    for view in views:
        assert all(ready_s >= 0 for ready_s, _, _ in view.coming)
    waiting = [sum(calls for _, _, calls in view.coming) for view in views]
    assert waiting[0] == 600
    assert waiting == sorted(waiting, reverse=True)
    assert len(made) < OUTLOOKS * len(views) / 2


def test_small_graphs_have_a_new_forecast_for_each_decision(monkeypatch):
    """Calls of 10 s; at each decision the next of them are ready in 10 s or sooner."""
    made = []

    def counted(*arguments: object) -> readiness.Coming:
        made.append(arguments)
        return readiness.coming(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(simulator, "coming", counted)
    views = watched(pairs(20))
    assert len(made) == OUTLOOKS * sum(bool(view.coming) for view in views)


def test_calls_that_have_not_arrived_are_not_forecast():
    views = watched(pairs(8, arrival_s=15.0))
    assert not any(view.coming for view in views if view.now < 15)
    assert any(view.coming for view in views)


def test_a_stage_of_many_calls_behind_many_is_quick_to_simulate():
    """Four million dependencies, given by one list."""
    before = tuple(range(2000))
    calls = [Call(FIRST, 1.0) for _ in before] + [Call(SECOND, 1.0, after=before) for _ in before]
    work = Workload("stages", tuple(calls), {"run": Terms(0, 100)})
    outcome = simulate(work, lambda _: RULES["maximum"].make(), Startup(0.0, 0.0))
    assert outcome.makespan_s == 40.0


def drawn() -> Workload:
    rng = random.Random(5)
    calls = [
        Call(
            Kind("ab"[rng.randrange(2)], f"k{rng.randrange(5)}"),
            rng.lognormvariate(math.log(12), 1),
            after=tuple(sorted(rng.sample(range(i), min(i, rng.randrange(4))))),
        )
        for i in range(150)
    ]
    return Workload("drawn", tuple(calls), {"a": Terms(0, 16), "b": Terms(1, 8, 2, 3.0)})


#: Rule -> time, cost, number of changes, and sum of the counts after them.
RESULTS = {
    "dask": (371.685561, 7689.511463, 44, 314),
    "parsl-htex": (260.172707, 9050.837270, 12, 97),
    "jgcri": (310.375288, 7390.438648, 8, 46),
    "hyperqueue": (509.108218, 7168.826821, 11, 38),
    "opengris": (851.376806, 5214.621369, 8, 13),
    "maximum": (257.411344, 10118.962261, 2, 24),
}


@pytest.mark.parametrize("rule", RESULTS)
def test_results_are_those_of_the_first_simulator(rule):
    """Results from before the simulator was made faster; only a change of a rule may move them."""
    make, startup = RULES[rule].make, Startup(60.0, 60.0)
    outcome = simulate(drawn(), lambda _: make(), startup, every_s=5.0, seed=3, order="submitted")
    changes = [change.after for change in outcome.changes]
    found = (outcome.time_s, outcome.cost, len(changes), sum(changes))
    assert found == pytest.approx(RESULTS[rule])
