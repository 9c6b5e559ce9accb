"""Whole plans: what they predict, how sure they are, and why they are as they are."""

import pytest
from plans import request, task

from scalable.errors import PlanError
from scalable.model import ComponentSpec, Forecast, TaskSpec, WorkerRange
from scalable.planning import (
    Knowledge,
    PastPrediction,
    PlanRequest,
    Prices,
    make_plan,
    worker_counts,
)

LOCK = "0" * 64
TWO = [task("sim", "model", 100, 60), task("sum", "post", 10, 10, after=("sim",))]


def plan(spec, objective=None, policy=None, knowledge=None, **request):
    return make_plan(spec, LOCK, knowledge, PlanRequest.parse(objective, policy, **request))


def counts(made):
    return dict(made.scale_plan.workers_by_tag)


def hpc(*tasks, total=16, walltime="00:20:00", **more):
    return request(*tasks, options={"n_workers": total, "walltime": walltime}, **more)


def said(made):
    return "\n".join(made.reasons)


def test_the_walltime_is_the_deadline():
    # 15 waves of 72 s and 10 of 12 s are 20 minutes; without headroom 17 of 60 s and 10 of 10 s.
    assert counts(plan(hpc(*TWO), "minimize cost", "safe")) == {"model": 7, "post": 1}
    made = plan(hpc(*TWO), "minimize cost", "aggressive")
    assert counts(made) == {"model": 6, "post": 1}
    assert made.predicted_time_s == 17 * 60 + 10 * 10
    assert made.binding == "the walltime of target 't'"
    assert made.deadline_s == 1200


def test_a_deadline_takes_the_place_of_the_walltime():
    made = plan(hpc(*TWO), "minimize cost", "aggressive", deadline="2h")
    assert counts(made) == {"model": 1, "post": 1}
    assert made.binding == "the minimum counts of the pools"
    assert "takes longer than the walltime of one job" in said(made)


def test_an_impossible_walltime_names_the_least_time_and_the_bound():
    with pytest.raises(PlanError, match="the maximum of the target") as caught:
        plan(hpc(*TWO, walltime="00:05:00"), "minimize cost", "safe")
    assert "shortest possible time is 10 m 24 s" in caught.value.message
    assert "the prediction is 8 m 40 s" in caught.value.message


def test_the_fastest_counts_share_the_total():
    made = plan(hpc(*TWO), "minimize time", "aggressive")
    assert sum(counts(made).values()) == 16
    assert made.predicted_time_s == 520
    assert made.binding == "n_workers 16 of target 't'"
    wide = plan(hpc(*TWO, total=500), "minimize time", "aggressive")
    assert counts(wide) == {"model": 100, "post": 10}
    assert wide.binding.startswith("the tasks themselves")


def test_bounds_of_a_component_hold():
    components = [ComponentSpec("model", workers=WorkerRange(2, 5)), ComponentSpec("post")]
    spec = hpc(*TWO, components=components, walltime="10:00:00")
    assert counts(plan(spec, "minimize cost"))["model"] == 2
    made = plan(spec, "minimize time")
    assert counts(made) == {"model": 5, "post": 10}
    assert made.binding == "components.model.workers: at most 5 for 'model'"
    fixed = [ComponentSpec("model", workers=WorkerRange(5, 5)), ComponentSpec("post")]
    spec = hpc(*TWO, components=fixed, walltime="10:00:00")
    assert {counts(plan(spec, o))["model"] for o in ("minimize cost", "minimize time")} == {5}


def test_on_local_only_max_workers_bounds():
    spec = request(*TWO, provider="local", options={"max_workers": 64})
    made = plan(spec, "minimize time")
    # The four that are left would not save a wave.
    assert counts(made) == {"model": 50, "post": 10}
    assert made.binding == "max_workers 64 of target 't'"
    # It is one worker for each pool where it is not written.
    spec = request(*TWO, provider="local", options={"max_workers": None})
    made = plan(spec, "minimize time")
    assert counts(made) == {"model": 1, "post": 1}
    assert made.binding.startswith("max_workers or n_workers, which are not set: at most 1")


def test_adaptive_bounds_are_totals():
    spec = request(*TWO, adaptive=WorkerRange(4, 9))
    assert sum(counts(plan(spec, "minimize cost")).values()) == 4
    made = plan(spec, "minimize time")
    assert sum(counts(made).values()) == 9
    assert made.binding == "adaptive.maximum 9 of target 't'"


def test_a_plan_has_no_more_workers_than_jobs_are_allowed_at_once():
    made = plan(request(*TWO, options={"at_most": 7}), "minimize time")
    assert sum(counts(made).values()) == 7
    assert made.binding == "at_most 7 of target 't'"
    most = request(*TWO, options={"at_most": 7, "n_workers": 4})
    assert sum(counts(plan(most, "minimize time")).values()) == 4
    fixed = [ComponentSpec("model", workers=WorkerRange(9, 9)), ComponentSpec("post")]
    spec = request(*TWO, components=fixed, options={"at_most": 7})
    assert counts(plan(spec, "minimize time")) == {"model": 9, "post": 1}


def test_cpus_are_never_changed():
    components = [ComponentSpec("model", cpus=8, memory="20G"), ComponentSpec("post", cpus=2)]
    for objective in ("minimize cost", "balance", "minimize time"):
        made = plan(hpc(*TWO, components=components), objective)
        assert {t: r.cpus for t, r in made.scale_plan.resources_by_tag.items()} == {
            "model": 8, "post": 2
        }  # fmt: skip


@pytest.mark.parametrize("objective", ["minimize cost", "minimize time", "balance"])
def test_policy_manual_is_the_plan_without_objective(objective):
    for spec in (hpc(*TWO), hpc(*TWO, total=3), request(*TWO), hpc(task("x", "a"))):
        made = plan(spec, objective, "manual")
        assert counts(made) == worker_counts(spec) == counts(plan(spec))
        assert made.front == ()


def test_a_plan_without_objective_predicts_what_is_known():
    made = plan(hpc(*TWO))
    assert counts(made) == {"model": 15, "post": 1}
    assert made.predicted_time_s == 7 * 60 + 10 * 10
    low, high = made.predicted_interval_s
    assert low < made.predicted_time_s < high
    assert 0 < made.confidence < 0.5


def test_a_pool_with_calls_and_without_workers_is_named():
    idle = ComponentSpec("a", workers=WorkerRange(0, 3))
    work = [task("x", "a", 4, 10), task("y", "b", 4, 10)]
    made = plan(request(*work, components=[idle, ComponentSpec("b")], options={"n_workers": 1}))
    assert (counts(made), made.predicted_time_s) == ({"a": 0, "b": 1}, None)
    assert "these pools have tasks to run and start without a worker: a" in said(made)


def test_without_knowledge_it_says_that_it_guesses_and_which_key_to_add():
    spec = request(task("sim", "model"), task("sum", "post", count=3),
                   components=[ComponentSpec("model"), ComponentSpec("post"), ComponentSpec("idle")])  # fmt: skip
    made = plan(spec, "minimize time")
    assert made.confidence == 0
    assert "This is a guess" in said(made)
    assert "`tasks.sim.count` and `tasks.sim.duration`" in said(made)
    assert "`tasks.sum.duration`" in said(made)
    assert "`tasks.sum.count`" not in said(made)
    assert "No task names idle" in said(made)
    assert counts(made) == {"model": 10, "post": 3, "idle": 1}
    plain = plan(spec)
    assert plain.predicted_time_s is None
    assert "No time is predicted" in said(plain)


def test_knowledge_decides_if_a_deadline_can_hold():
    spec = hpc(*TWO, task("more", "other"), total=60, walltime="00:10:00")
    assert plan(spec, "minimize cost", "aggressive").confidence > 0
    with pytest.raises(PlanError, match="cannot finish within 1 m"):
        plan(spec, "minimize cost", "aggressive", deadline="65s")
    unknown = hpc(task("x", "a", 10**6))
    made = plan(unknown, "minimize cost")
    assert "According to this guess the run exceeds the walltime of target 't'" in said(made)
    assert made.binding == "the walltime of target 't'"


def test_a_guess_fills_what_the_target_allows():
    spec = hpc(components=[ComponentSpec("gcam")], walltime="04:00:00")
    picks = [counts(plan(spec, o))["gcam"] for o in ("minimize cost", "balance", "minimize time")]
    assert picks[0] == 1
    assert 1 < picks[1] < 16
    assert picks[2] == 16


def test_a_small_total_leaves_pools_empty_that_nothing_is_known_of():
    components = [ComponentSpec("idle"), ComponentSpec("model")]
    made = plan(hpc(task("x", "model", 5, 10), components=components, total=1), "minimize cost")
    assert counts(made) == {"idle": 0, "model": 1}


def test_a_pool_with_calls_and_no_room_is_an_error():
    components = [ComponentSpec("model", workers=WorkerRange(0, 0)), ComponentSpec("post")]
    with pytest.raises(PlanError, match="'model' has tasks to run, but its maximum of 0"):
        plan(hpc(*TWO, components=components), "balance")


def test_earlier_runs_say_what_the_manifest_does_not():
    forecast = Forecast(50.0, 45.0, 70.0, 90.0, memory=10**9, samples=40, source="history")
    knowledge = Knowledge({"sim": forecast}, calls={"sim": 200}, startup_s={"model": 30.0})
    made = plan(request(task("sim", "model")), "minimize time", "aggressive", knowledge)
    assert counts(made) == {"model": 200} or counts(made)["model"] > 50
    assert made.predicted_time_s > 30 + 50
    assert "200 tasks of 50.0 s in pool model, from 40 tasks of earlier runs" in said(made)
    few = plan(request(task("sim", "model")), "minimize cost", "aggressive", knowledge)
    stated = plan(request(task("sim", "model", 200, 50.0)), "minimize cost", "aggressive")
    assert few.confidence > stated.confidence + 0.2


def test_a_high_confidence_is_not_called_low():
    work = task("sim", "model", 1, 0.1)
    slow_start = Knowledge(startup_s={"model": 60.0})
    made = plan(request(work), None, None, slow_start)
    assert 0.5 < made.confidence < 1
    assert "is not low, although no task of sim was measured" in said(made)
    unsure = plan(request(work))
    assert unsure.confidence < 0.5
    assert "is low: no task of sim was measured" in said(unsure)


def test_calls_of_tasks_that_the_manifest_does_not_name_count_too():
    forecast = Forecast.exactly(10.0)
    knowledge = Knowledge({"run_it": forecast}, unlisted=[TaskSpec("run_it", "model", count=40)])
    spec = request(components=[ComponentSpec("model")])
    assert counts(plan(spec, "minimize time", None, knowledge)) == {"model": 40}


def test_overhead_beyond_the_calls_is_learned_from_past_runs():
    past_predictions = [
        PastPrediction(100.0, actual) for actual in (180.0, 200.0, 220.0, 150.0, 260.0)
    ]
    made = plan(hpc(*TWO), None, None, Knowledge(past_predictions=past_predictions))
    assert made.predicted_time_s == 2 * 520
    assert made.overhead == 2
    # 1.8, 2.0 and 2.2 are within 0.8 to 1.25 times what the others say; 1.5 and 2.6 are not.
    assert 3 / (5 + 2) < made.confidence < (2 + 3) / (5 + 2)
    assert "2.00 times as long as their tasks" in said(made)
    again = [PastPrediction(200.0, 200.0, overhead=2.0)] * 5
    assert (
        plan(hpc(*TWO), None, None, Knowledge(past_predictions=again)).predicted_time_s == 2 * 520
    )


def test_prices_become_costs():
    prices = Prices({"model": 2.0, "post": 0.5}, "EUR", "the table of somewhere", "2026-01-31")
    made = plan(hpc(*TWO), "minimize cost", "aggressive", Knowledge(prices=prices))
    cost = made.cost_estimate
    assert cost.by_tag == {"model": 12.0, "post": 0.5}
    assert (cost.hourly, cost.currency, cost.as_of) == (12.5, "EUR", "2026-01-31")
    assert cost.source == "the table of somewhere"
    work = (6000 * 2.0 + 100 * 0.5) / 3600
    predicted = made.predicted_cost
    assert work < predicted.expected < 1.05 * work
    assert predicted.unit == "EUR"
    assert predicted.held == pytest.approx(12.5 * 1120 / 3600)
    low, high = predicted.interval
    assert low < predicted.expected < high
    assert cost.total == predicted.billed == predicted.held
    low, high = predicted.billed_interval
    assert low < cost.total < high
    assert plan(hpc(*TWO), "minimize cost").cost_estimate is None
    assert plan(hpc(*TWO), "minimize cost").predicted_cost.unit == "worker-seconds"


def test_a_budget_that_binds_is_named():
    spec = hpc(*TWO, price_per_core_hour=1.0, walltime="10:00:00")
    free = plan(spec, "minimize time", "aggressive")
    made = plan(spec, "minimize time", "aggressive", budget=2.2)
    assert made.predicted_cost.held <= 2.2 < free.predicted_cost.held
    assert made.predicted_time_s > free.predicted_time_s
    assert made.binding == "the budget of 2.2 USD"


def test_reservations_far_from_what_was_used_are_pointed_out():
    components = [ComponentSpec("model", memory="20G"), ComponentSpec("post", memory="1G")]
    used = {"sim": 3 * 10**9, "sum": 2 * 10**9}
    forecasts = {
        name: Forecast(1.0, 1.0, 1.0, 1.0, memory, samples=20, source="history")
        for name, memory in used.items()
    }
    spec = hpc(*TWO, components=components)
    advice = plan(spec, None, None, Knowledge(forecasts)).memory_advice
    assert [(a.tag, a.advised, a.written) for a in advice] == [
        ("model", 3_600_000_000, "3.4Gi"), ("post", 2_400_000_000, "2.3Gi")
    ]  # fmt: skip
    fits = [ComponentSpec("model", memory="5G"), ComponentSpec("post", memory="3G")]
    assert not plan(hpc(*TWO, components=fits), None, None, Knowledge(forecasts)).memory_advice


def test_nothing_to_do_takes_no_time():
    made = plan(hpc(task("x", "model", 0, 10)), "minimize time")
    assert counts(made) == {"model": 1}
    assert made.predicted_time_s == 0
