"""The simulator that judges the scaling policy, on cases that can be followed by hand."""

from __future__ import annotations

import pytest

from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import Expectation, Kind, TaskModel
from simulation.simulator import simulate
from simulation.workloads import Call, Startup, Terms, Workload

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


def test_tasks_run_in_order_on_started_workers() -> None:
    """Two workers at 5 s; tasks of 10, 4, 3 s: the third starts at 9 and all have ended at 15."""
    outcome, _ = run(work(10, 4, 3), {0: 2})
    assert outcome.makespan_s == outcome.time_s == 15
    assert outcome.sojourn_s == pytest.approx((15 + 9 + 12) / 3)
    # Each is paid for the last 2 s of its start, and until the end.
    assert outcome.cost == 2 * (2 + 10)
    assert outcome.workers == {"run": [(5.0, 1), (5.0, 2), (15.0, 0)]}


def test_idle_workers_are_paid_until_they_leave() -> None:
    outcome, _ = run(work(10, 2), {0: 2, 6: 0, 14: 1})
    # The second ends at 7 and leaves then; the first is busy until 15.
    assert outcome.cost == (2 + 2) + (2 + 10)
    assert [(c.time_s, c.before, c.after) for c in outcome.changes] == [(0, 0, 2), (7, 2, 1)]
    late, _ = run(work(10), {0: 3, 4: 1})  # two are cancelled after one billed second
    assert late.cost == (2 + 10) + 2 * (4 - 3)


def test_blocked_tasks_wait_and_are_forecast() -> None:
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
