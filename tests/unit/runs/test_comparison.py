"""A run beside what its plan predicted."""

import pytest

from scalable.errors import RunError
from scalable.model import Plan, ScalePlan
from scalable.runs.reading import RunRecord
from scalable.runs.report.comparison import (
    LONGEST_NAME,
    compared,
    render_comparison,
)
from scalable.runs.report.plans import plan_json, render_plan
from scalable.runs.report.run_report import compare, said_cost, said_time
from scalable.runs.summary import summarize

PLAN = {
    "objective": "balance",
    "policy": "safe",
    "predicted_time_s": 40.0,
    "confidence": 0.5,
    "scale_plan": {"workers_by_tag": {"model": 2}, "resources_by_tag": {"model": {"cpus": 1, "memory": "10G"}}},
    "predicted_cost": {"unit": "USD", "billed": 0.099, "billed_interval": [0.09, 0.11]},
    "tasks": {"sim": {"tag": "model", "calls": 6, "mean_s": 10.0, "q80_s": 12.0, "memory": None}},
}  # fmt: skip


def rows(count, seconds, name="sim"):
    for i in range(count):
        head = {"task_id": f"{name}-{i}", "task_name": name, "tag": "model"}
        yield head | {"state": "submitted", "timestamp": 100.0}
        yield head | {"state": "succeeded", "timestamp": 100.0 + (i + 1) * seconds,
                      "duration_s": seconds, "peak_memory": 10**9}  # fmt: skip


def worker(name, event, timestamp):
    return {"worker": name, "tag": "model", "event": event, "timestamp": timestamp}


@pytest.fixture
def record(tmp_path):
    def make(status="completed", plan=PLAN, tasks=(), workers=()):
        return RunRecord(tmp_path / "run-x", {"run_id": "run-x"}, status, plan=plan,
                         tasks=list(tasks), workers=list(workers))  # fmt: skip

    return make


def test_predicted_stands_beside_actual(record):
    workers = [worker("a", "started", 90.0), worker("b", "started", 100.0),
               worker("b", "removed", 130.0), worker("c", "started", 140.0),
               worker("a", "billed", 145.0) | {"manager": "m", "cost": 0.097}]  # fmt: skip
    found = compare(record(tasks=[*rows(5, 9.0), *rows(1, 2.0, "extra")], workers=workers))
    assert found.time_s == (40.0, 45.0)
    assert found.within is True
    assert found.workers == {"model": (2.0, 2.0)}
    # a: 90 to 145, b: 100 to 130, c: 140 to 145
    assert found.worker_seconds == (80.0, 55.0 + 30.0 + 5.0)
    assert found.cost == (0.099, 0.097)
    assert found.tasks["sim"]["tasks"] == (6.0, 5.0)
    assert found.tasks["sim"]["mean_s"] == (10.0, 9.0)
    assert found.tasks["sim"]["memory"] == (None, 10**9)
    assert found.tasks["extra"]["tasks"] == (None, 1.0)
    (advice,) = found.memory_advice
    assert (advice.tag, advice.written) == ("model", "1.2Gi")


def test_report_and_comparison_show_one_cost(record):
    billed = worker("a", "billed", 145.0) | {"manager": "m", "cost": 0.09712}
    rates = {"cost_estimate": {"by_tag": {"model": 7.2}, "currency": "USD"}}
    run = record(plan=PLAN | rates, tasks=rows(5, 9.0), workers=[billed])
    cost = summarize(run).cost
    assert compare(run).cost == (cost.planned, cost.actual) == (0.099, 0.09712)
    assert "cost, USD" in render_comparison(compare(run))
    assert said_cost(cost).startswith("0.097 USD, ")
    (line,) = (x for x in render_comparison(compare(run)).splitlines() if "cost, USD" in x)
    assert line.split()[2:4] == ["0.099", "0.097"]


def test_a_long_name_of_a_task_is_cut_in_the_comparison(record):
    found = compare(record(tasks=rows(1, 9.0, "x" * 100_000)))
    *_, table = (piece["table"] for piece in compared(found) if "table" in piece)
    names = [row.cells[0] for row in table.rows]
    assert [len(name) for name in names] == [len("sim"), LONGEST_NAME]


def test_a_prediction_that_was_far_exceeded_did_not_hold(record):
    found = compare(record(tasks=rows(6, 20.0)))
    assert (found.time_s, found.within) == ((40.0, 120.0), False)


def test_plan_comparison_and_report_measure_one_span(record):
    times = {"predicted_time_s": 50.0, "startup_s": 10.0}
    plan = Plan("t", "p", "0", ScalePlan({}), predicted_interval_s=(45.0, 60.0), **times)
    shown = render_plan(plan)
    assert "Time:      about 40.0 s, 35.0 s to 50.0 s (" in shown
    assert "Start-up:  10.0 s" in shown
    told = plan_json(plan)
    assert (told["time_s"], told["interval_s"], told["startup_s"]) == (40.0, [35.0, 50.0], 10.0)
    # The first worker was requested 8 s before the first task, and connected 4 s after it.
    workers = [worker("a", "requested", 92.0), worker("a", "started", 104.0)]
    run = record(plan=PLAN | times, tasks=rows(5, 9.0), workers=workers)
    found, summary = compare(run), summarize(run)
    assert (found.time_s, found.startup_s) == ((40.0, 41.0), (10.0, 12.0))
    assert (summary.time_s, summary.startup_s) == (41.0, 12.0)
    assert said_time(summary).startswith("41.0 s (start-up 12.0 s, session ")
    assert found.within is True


def test_numbers_that_no_product_survives_are_none(record):
    found = compare(record(plan=PLAN | {"predicted_time_s": 10**400, "confidence": 1e300}))
    assert (found.time_s[0], found.confidence, found.worker_seconds[0]) == (None, None, None)


def test_a_comparison_as_text_and_as_json(record):
    found = compare(record(tasks=rows(5, 9.0), workers=[worker("a", "started", 100.0)]))
    text = render_comparison(found)
    assert "Within 0.8 to 1.25 times the predicted time: yes (confidence was fair)" in text
    assert ": 1.2Gi is enough." in " ".join(text.split())
    assert [line.split() for line in text.splitlines() if line.startswith("  time ")] == [
        ["time", "40.0", "s", "45.0", "s", "1.12"]
    ]
    shown = found.to_dict()
    assert shown["time_s"] == {"predicted": 40.0, "actual": 45.0}
    assert shown["tasks"]["sim"]["mean_s"] == {"predicted": 10.0, "actual": 9.0}


def test_guesses_without_a_prediction_are_not_shown(record):
    found = compare(record(plan=PLAN | {"predicted_time_s": None}, tasks=rows(5, 9.0)))
    assert found.tasks["sim"]["tasks"] == (None, 5.0)
    assert found.tasks["sim"]["mean_s"] == (None, 9.0)


def test_a_run_without_a_prediction_shows_what_it_took(record):
    found = compare(record(plan={}, tasks=rows(5, 9.0)))
    assert (found.time_s, found.within, found.cost) == ((None, 45.0), None, (None, None))
    assert "not known" in render_comparison(found)
    assert compare(record(plan={})).time_s == (None, None)


@pytest.mark.parametrize(("status", "within"), [("completed", True), ("cancelled", None)])
def test_a_prediction_is_not_judged_by_a_run_that_was_cancelled(record, status, within):
    waiting = {"task_id": "sim-9", "task_name": "sim", "state": "submitted", "timestamp": 100.0}
    found = compare(record(status=status, tasks=[*rows(4, 10.0), waiting]))
    assert (found.time_s, found.within) == ((40.0, 40.0), within)
    assert found.tasks["sim"]["tasks"] == (6.0, 4.0)


def test_a_run_that_goes_on_is_not_compared(record):
    with pytest.raises(RunError, match="is still running"):
        compare(record(status="running"))
