"""The simulator and its reference, on cases that can be followed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import Expectation, Kind, TaskModel
from scalable.simulation.reference import clairvoyant, lower_bounds
from scalable.simulation.result import SimulationResult, Startup
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload

RUN = Kind("run", "simulate")
EXACT = Startup(5.0, 2.0, spread=(1.0, 1.0))


class Script:
    """Counts by the time from which they hold; keeps what it was shown."""

    def __init__(self, counts: dict[float, int]) -> None:
        self.counts = counts
        self.views: list[PoolView] = []

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        self.views.append(view)
        begun = [time for time in self.counts if time <= view.now]
        return PoolDecision(self.counts[max(begun)], "script")


def work(*durations: float, stream: bool = False, **terms: float) -> Workload:
    calls = tuple(Call(RUN, duration) for duration in durations)
    return Workload("hand", calls, {"run": Terms(**terms)}, stream=stream)  # type: ignore[arg-type]


def run(workload: Workload, counts: dict[float, int], startup: Startup = EXACT, every_s=1.0):
    script = Script(counts)
    return simulate(workload, lambda _: script, startup, every_s=every_s), script


def test_calls_run_first_come_first_served_on_what_has_started() -> None:
    """Two workers at 5 s; calls of 10, 4, 3 s: the third starts at 9 and all have ended at 15."""
    outcome, _ = run(work(10, 4, 3), {0: 2})
    assert outcome.makespan_s == outcome.time_s == 15
    assert outcome.sojourn_s == pytest.approx((15 + 9 + 12) / 3)
    # Each is paid for the last 2 s of its start, and until the end.
    assert outcome.cost == 2 * (2 + 10)
    assert outcome.workers == {"run": [(5.0, 1), (5.0, 2), (15.0, 0)]}


def test_slots_run_calls_side_by_side_and_prices_count() -> None:
    outcome, _ = run(work(10, 10, 10, slots=3, price=4.0), {0: 1})
    assert (outcome.makespan_s, outcome.cost) == (15, 4 * (2 + 10))


def test_an_idle_worker_that_goes_is_paid_until_then_and_no_busy_one_goes() -> None:
    outcome, _ = run(work(10, 2), {0: 2, 6: 0, 14: 1})
    # The second ends at 7 and goes then; the first is busy until 15.
    assert outcome.cost == (2 + 2) + (2 + 10)
    assert [(c.time_s, c.before, c.after) for c in outcome.changes] == [(0, 0, 2), (7, 2, 1)]


def test_unstarted_workers_cost_no_more_than_was_billed() -> None:
    early, _ = run(work(10), {0: 3, 2: 1})
    late, _ = run(work(10), {0: 3, 4: 1})
    assert early.cost == 2 + 10
    assert late.cost == (2 + 10) + 2 * (4 - 3)


def test_a_worker_is_paid_for_at_least_the_least() -> None:
    outcome, _ = run(work(10), {0: 1}, Startup(5.0, 2.0, least_s=60.0, spread=(1.0, 1.0)))
    assert outcome.cost == 60


def test_bounds_of_the_pool_hold_whatever_the_policy_says() -> None:
    outcome, _ = run(work(*[10.0] * 9, maximum=3), {0: 100})
    assert max(count for _, count in outcome.workers["run"]) == 3


def test_pools_share_a_total_by_the_work_that_they_have() -> None:
    calls = [Call(RUN, 60.0)] * 6 + [Call(Kind("sum", "add"), 20.0)] * 6
    pools = {"run": Terms(), "sum": Terms()}
    shared = Workload("hand", tuple(calls), pools, total=4)
    script = Script({0: 6})
    outcome = simulate(shared, lambda _: script, EXACT, TaskModel(), every_s=1.0)
    assert outcome.most_workers == 4
    assert {change.pool: change.after for change in outcome.changes[:2]} == {"run": 2, "sum": 2}
    free = simulate(replace(shared, total=None), lambda _: script, EXACT, TaskModel(), every_s=1.0)
    assert free.most_workers == 12


def test_the_most_workers_are_counted_at_one_time() -> None:
    lines = {"a": [(1.0, 2), (4.0, 1), (4.0, 0)], "b": [(4.0, 1), (4.0, 3), (9.0, 0)]}
    assert SimulationResult(9.0, 9.0, 9.0, 1.0, [], 1, lines).most_workers == 3


def test_calls_wait_for_those_before_them_and_views_tell_when_they_come() -> None:
    big = Kind("big", "sum")
    calls = (Call(RUN, 10.0), Call(RUN, 20.0), Call(big, 5.0, after=(0, 1)))
    workload = Workload("graph", calls, {"run": Terms(), "big": Terms()})
    scripts = {"run": Script({0: 2}), "big": Script({0: 1})}
    model = TaskModel({(RUN.component, RUN.task): Expectation(20.0)})
    outcome = simulate(workload, scripts.__getitem__, EXACT, model, every_s=1.0)
    assert outcome.makespan_s == 5 + 20 + 5
    seen = {view.now: view.coming for view in scripts["big"].views}
    assert seen[5.0] == [(pytest.approx(20.0), big, 1)]
    assert seen[24.0][0][0] < 11
    assert not seen[26.0]


def test_views_show_what_runs_and_how_workers_start() -> None:
    _, script = run(work(10, 10, 10), {0: 2})
    views = {view.now: view for view in script.views}
    assert (views[3.0].arriving, views[3.0].queued, views[3.0].busy) == ([3.0, 3.0], {RUN: 3}, 0)
    assert (views[7.0].running, views[7.0].queued) == ({RUN: [2.0, 2.0]}, {RUN: 1})
    assert (views[16.0].busy, views[16.0].idle, views[16.0].submitted) == (1, 1, 3)
    assert views[7.0].startup_s == 5.0


def test_a_pool_learns_how_long_its_workers_take_to_start() -> None:
    _, script = run(work(30), {0: 1}, Startup(9.0, 1.0, spread=(1.0, 1.0), expected_s=3.0))
    views = {view.now: view.startup_s for view in script.views}
    assert (views[0.0], views[2.0], views[8.0]) == (3.0, 3.0, 8.0)
    assert views[10.0] == 9


def test_the_time_of_a_stream_is_the_mean_from_arrival_to_end() -> None:
    calls = (Call(RUN, 10.0), Call(RUN, 10.0, 50.0))
    outcome, _ = run(Workload("s", calls, {"run": Terms()}, stream=True), {0: 1})
    assert outcome.time_s == outcome.sojourn_s == (15 + 10) / 2


def test_the_same_seed_gives_the_same() -> None:
    workload = work(*range(1, 30))
    spread = Startup(20.0, 5.0)
    first, second, other = (
        simulate(workload, lambda _: Script({0: 7}), spread, seed=seed).makespan_s
        for seed in (1, 1, 2)
    )
    assert first == second != other


def test_a_policy_that_never_asks_for_anybody_is_told_so() -> None:
    with pytest.raises(ValueError, match="2 calls have not ended"):
        run(work(1, 1), {0: 0}, every_s=1e6)


def test_the_reference_knows_how_many_workers_pay() -> None:
    """Four calls of 10 s; with w workers the time is 5 + 40 / w and the cost 40 + 2 w."""
    best = clairvoyant(work(10, 10, 10, 10), EXACT)
    products = {w: (5 + 40 / w) * (40 + 2 * w) for w in (1, 2, 4)}
    assert best.product == min(products.values()) == products[4]


def test_the_reference_takes_the_longest_way_first() -> None:
    calls = (Call(RUN, 10.0), Call(RUN, 1.0), Call(RUN, 50.0, after=(1,)))
    workload = Workload("ways", calls, {"run": Terms(0, 1)})
    assert clairvoyant(workload, EXACT).time_s == 5 + 61
    two = Workload("ways", calls, {"run": Terms(2, 2)})
    assert clairvoyant(two, EXACT).time_s == 5 + 51


def test_a_gap_costs_the_reference_no_more_than_a_start() -> None:
    calls = (Call(RUN, 10.0, 5.0), Call(RUN, 10.0, 16.0), Call(RUN, 10.0, 500.0))
    best = clairvoyant(Workload("gaps", calls, {"run": Terms()}, stream=True), EXACT)
    assert best == (10.0, 2 + 30 + 1 + 2)


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_better_than_the_lower_bounds(stream: bool) -> None:
    calls = [Call(RUN, 7.0 + i % 5, arrival_s=float(i) * stream) for i in range(40)]
    if not stream:
        calls = [call._replace(after=(i - 20,) if i >= 20 else ()) for i, call in enumerate(calls)]
    workload = Workload("any", tuple(calls), {"run": Terms(0, 8)}, stream=stream)
    least, best = lower_bounds(workload, EXACT), clairvoyant(workload, EXACT)
    outcome, _ = run(workload, {0: 8})
    assert least.time_s <= min(best.time_s, outcome.time_s)
    assert least.cost <= min(best.cost, outcome.cost)
    assert math.isfinite(best.product)
