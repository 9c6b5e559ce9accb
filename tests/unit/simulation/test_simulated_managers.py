"""Pools whose workers come from several simulated managers."""

from itertools import pairwise

import pytest

from scalable.scaling.cheapest_policy import Cheapest
from scalable.scaling.pool_policy import PoolDecision
from scalable.scaling.task_model import Expectation, Kind, TaskModel
from scalable.scaling.waterfall import Waterfall
from scalable.simulation.managers import SimulatedManager, simulate_managers
from scalable.simulation.managers_reference import clairvoyant_managers
from scalable.simulation.result import Startup
from scalable.simulation.workloads import Call, Terms, Workload

KIND = Kind("run", "call")


class Constant:
    """A pool of constant size."""

    def __init__(self, workers):
        self.workers = workers

    def decide(self, view, model):
        return PoolDecision(self.workers, "constant")


def manager(name, delay_s, price=1.0, **more):
    return SimulatedManager(name, Startup(delay_s, 0.0, spread=(1.0, 1.0)), price, **more)


def work(calls, seconds):
    each = tuple(Call(KIND, seconds) for _ in range(calls))
    return Workload("w", each, {"run": Terms(0, 64)}, expected=True)


def run(policy, *managers, workers=4, calls=8, seconds=100.0, every_s=1.0, model=None):
    return simulate_managers(
        work(calls, seconds), lambda _: Constant(workers), managers, policy, model, every_s=every_s
    )


def test_workers_come_from_their_managers_at_their_prices():
    outcome = run(Waterfall(), manager("a", 10.0, maximum=3), manager("b", 20.0, price=3.0))
    # 3 workers begin at 10 s, one at 20 s: 8 calls take two rounds, and 210 s or 220 s.
    assert outcome.makespan_s == 220.0
    assert outcome.cost_by_manager == {"a": 3 * 210.0, "b": 3.0 * 200.0}
    assert outcome.cost == sum(outcome.cost_by_manager.values())


def test_a_minimum_and_a_granularity_are_billed():
    least = SimulatedManager("a", Startup(0.0, 0.0, least_s=900.0, spread=(1.0, 1.0)))
    assert run(Waterfall(), least).cost == 4 * 900.0
    hours = SimulatedManager("a", Startup(0.0, 0.0, spread=(1.0, 1.0)), granularity_s=3600.0)
    assert run(Waterfall(), hours).cost == 4 * 3600.0


def test_a_manager_that_never_delivers_is_passed_over_by_either_policy():
    failing = manager("never", 1.0, 0.1, delivers=0)
    for policy in (Waterfall(30.0), Cheapest(30.0)):
        outcome = run(policy, failing, manager("b", 10.0, priority=1))
        assert outcome.cost_by_manager["never"] == 0.0
        assert 240.0 <= outcome.makespan_s < 250.0


def test_what_a_manager_cannot_deliver_at_once_comes_when_a_worker_has_left():
    few = manager("few", 10.0, delivers=2)
    outcome = run(Waterfall(), few, workers=4, calls=4)
    assert outcome.makespan_s == 210.0
    assert outcome.most_workers == 2


def test_no_worker_connects_while_a_manager_is_closed():
    closed = manager("a", 10.0, closed=((5.0, 50.0), (50.0, 80.0)))
    assert run(Waterfall(), closed).makespan_s == 280.0


def test_busy_workers_finish_their_calls_before_they_leave():
    class Shrinking:
        def decide(self, view, model):
            return PoolDecision(4 if view.now < 50 else 1, "fewer")

    outcome = simulate_managers(
        work(8, 100.0), lambda _: Shrinking(), [manager("a", 10.0)], Waterfall(), every_s=1.0
    )
    # All four finish their first calls; one is left for the other four.
    assert outcome.makespan_s == 510.0
    assert outcome.cost == 3 * 100.0 + 500.0


def test_the_cheap_manager_replaces_the_dear_one_when_it_delivers():
    slow = manager("slow", 200.0, 1.0)
    quick = manager("quick", 5.0, 3.0, priority=1)
    cheapest = run(Cheapest(60.0), slow, quick, calls=100, every_s=5.0)
    waterfall = run(Waterfall(60.0), slow, quick, calls=100, every_s=5.0)
    assert waterfall.cost_by_manager["slow"] == 0.0  # it gives up each trial after a minute
    assert cheapest.cost_by_manager["quick"] == 0.0  # it knows how long the slow one takes
    assert cheapest.cost < 0.5 * waterfall.cost
    unknown = SimulatedManager("slow", Startup(200.0, 0.0, expected_s=5.0), 1.0)
    learned = run(Cheapest(60.0), unknown, quick, calls=100, every_s=5.0)
    assert 3 * learned.cost_by_manager["slow"] > learned.cost_by_manager["quick"] > 0
    assert cheapest.cost < learned.cost < waterfall.cost


def test_work_moves_to_the_dear_manager_for_a_deadline():
    slow, quick = manager("slow", 600.0, 1.0), manager("quick", 5.0, 3.0)
    known = TaskModel({(KIND.component, KIND.task): Expectation(100.0)})
    loose = run(Cheapest(600.0, deadline_at=2000.0), slow, quick, model=known)
    tight = run(Cheapest(600.0, deadline_at=400.0), slow, quick, model=known)
    assert loose.cost_by_manager["quick"] == 0.0
    assert loose.makespan_s <= 2000.0
    assert tight.cost_by_manager["quick"] > 0.0
    assert tight.makespan_s <= 400.0


def test_equal_seeds_give_equal_results():
    places = [SimulatedManager("a", Startup(10.0)), SimulatedManager("b", Startup(5.0), 3.0)]
    first, second = (run(Cheapest(), *places) for _ in range(2))
    assert first == second
    assert all(a <= b for (a, _), (b, _) in pairwise(first.workers["run"]))


def test_a_simulation_without_managers_is_refused():
    with pytest.raises(ValueError, match="at least one manager"):
        run(Waterfall())


def test_the_clairvoyant_uses_the_dear_manager_only_for_a_deadline():
    slow, quick = manager("slow", 600.0, 1.0), manager("quick", 5.0, 3.0)
    loose = clairvoyant_managers(work(8, 100.0), [slow, quick], 10_000.0)
    assert loose.cost == 800.0
    assert loose.time_s >= 700.0
    tight = clairvoyant_managers(work(8, 100.0), [slow, quick], 250.0)
    assert (tight.cost, tight.time_s <= 250.0) == (2400.0, True)
    hopeless = clairvoyant_managers(work(8, 100.0), [slow, quick], 1.0)
    assert hopeless.time_s == 105.0
    closed = manager("slow", 10.0, 1.0, closed=((0.0, 500.0),))
    assert clairvoyant_managers(work(8, 100.0), [closed], 10_000.0).time_s >= 600.0
    with pytest.raises(ValueError, match="no manager delivers"):
        clairvoyant_managers(work(8, 100.0), [manager("never", 1.0, delivers=0)])
