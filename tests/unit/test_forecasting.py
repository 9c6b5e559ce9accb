"""Records of runs and the manifest become what a plan rests on."""

import dataclasses

import pytest

from scalable.forecasting import gather, knowledge_of, quoted_prices
from scalable.planning import PastPrediction, PlanRequest, make_plan
from scalable.spec import ComponentSpec, CostEstimate, DeploymentSpec, Price, Rate, TaskSpec
from scalable.telemetry import CallRecord, EarlierRun, RunDirectory
from scalable.telemetry.earlier_run import Span


def spec(*tasks, **fields):
    components = {tag: ComponentSpec(tag) for tag in ("model", "post")}
    return DeploymentSpec("p", "t", "slurm", components, {t.name: t for t in tasks}, **fields)


@pytest.fixture
def ran(tmp_path):
    """Record a run: (tag, name, count, seconds) for each kind of call."""

    def write(*kinds, target="t", plan=None, startup=None, memory=None, machine=None):
        run = RunDirectory.create(
            "p",
            target,
            manifest_yaml="",
            manifest_lock="0" * 64,
            plan=plan or {},
            runs_dir=tmp_path,
        )
        if startup is not None:
            for event, moment in (("requested", 0.0), ("started", startup)):
                run.append(
                    "workers", {"event": event, "worker": "w", "tag": "model", "timestamp": moment}
                )
        if machine is not None:
            told = {"event": "started", "worker": "w", "tag": "model", "timestamp": 1.0}
            run.append("workers", told | {"machine": machine})
        for tag, name, count, seconds in kinds:
            for i in range(count):
                head = {"task_id": f"{name}-{i}", "task_name": name, "tag": tag, "worker": "w"}
                run.append("tasks", head | {"state": "submitted", "timestamp": 1000.0})
                run.append("tasks", head | {"state": "succeeded", "timestamp": 1000.0 + seconds,
                                                "duration_s": seconds, "peak_memory": memory})  # fmt: skip
        run.close("completed")

    return write


def test_without_runs_the_manifest_is_what_is_known(tmp_path):
    task = TaskSpec("sim", "model", count=3, duration_s=60.0, memory="2G")
    known = gather(spec(task, TaskSpec("other", "post")), runs_dir=tmp_path)
    assert known.forecasts["sim"].source == "manifest"
    assert (known.forecasts["sim"].mean_s, known.forecasts["sim"].memory) == (60.0, 2 * 10**9)
    assert known.forecasts["other"].source == "guess"
    assert (known.calls, known.unlisted, known.past_predictions) == ({}, [], [])


def test_earlier_calls_say_how_long_and_how_many(tmp_path, ran):
    for count in (30, 40, 80):
        ran(("model", "sim", count, 5.0), memory=10**8)
    known = gather(spec(TaskSpec("sim", "model", duration_s=60.0)), runs_dir=tmp_path)
    forecast = known.forecasts["sim"]
    assert (forecast.source, forecast.samples, forecast.mean_s) == ("history", 150, 5.0)
    assert forecast.memory == 10**8
    assert known.calls == {"sim": 40}


def test_calls_by_tag_alone_belong_to_the_only_task_of_their_pool(tmp_path, ran):
    ran(("model", "run_it", 12, 5.0), ("post", "add_up", 4, 2.0))
    known = gather(spec(TaskSpec("sim", "model")), runs_dir=tmp_path)
    assert known.calls == {"sim": 12}
    assert known.forecasts["sim"].mean_s == 5.0
    assert [(t.name, t.component, t.count) for t in known.unlisted] == [("add_up", "post", 4)]
    assert known.forecasts["add_up"].mean_s == 2.0


def test_starts_and_outcomes_are_those_of_the_target(tmp_path, ran):
    plan = {"predicted_time_s": 8.0, "overhead": 2.0}
    ran(("model", "sim", 2, 5.0), plan=plan, startup=30.0)
    ran(("model", "sim", 2, 5.0), plan=plan, startup=900.0, target="elsewhere")
    known = gather(spec(TaskSpec("sim", "model")), runs_dir=tmp_path)
    assert known.startup_s == {"model": 30.0}
    assert known.past_predictions == [PastPrediction(8.0, 35.0, 2.0)]
    assert known.forecasts["sim"].samples == 4


def test_a_plan_that_ran_as_predicted_is_trusted_more_the_next_time(tmp_path, ran):
    request = spec(TaskSpec("sim", "model", count=8, duration_s=5.0))
    before = make_plan(request, "0" * 64, gather(request, runs_dir=tmp_path))
    assert before.predicted_time_s == 40.0
    for _ in range(6):
        ran(("model", "sim", 8, 40.0), plan=before.to_dict())
    after = make_plan(request, "0" * 64, gather(request, runs_dir=tmp_path), PlanRequest())
    assert after.confidence > (1 + 6) / (6 + 2) > before.confidence


def test_prices_come_from_the_provider_where_it_has_any():
    class Priced:
        def estimate_cost(self, spec, plan):
            hourly = {tag: 2.0 * n for tag, n in plan.workers_by_tag.items()}
            return CostEstimate(None, hourly, sum(hourly.values()), "EUR", "a list", "2026-02-01")

    class Free:
        def estimate_cost(self, spec, plan):
            return None

    prices = quoted_prices(Priced(), spec())
    assert prices.hourly_by_tag == {"model": 2.0, "post": 2.0}
    assert (prices.currency, prices.source, prices.as_of) == ("EUR", "a list", "2026-02-01")
    assert quoted_prices(Free(), spec()) is quoted_prices(object(), spec()) is None


class Rented:
    """A provider with rates, a scheduler and a manager."""

    def estimate_cost(self, spec, plan):
        rate = Rate(Price("m", "here", 4.0, (1.0, 2.0), date="2026-01-01", source="a list"), 2)
        rates = dict.fromkeys(plan.workers_by_tag, rate)
        always = {
            "scheduler": Rate(Price("s", "here", 0.5)),
            "manager": Rate(Price("s", "here", 0.3)),
        }
        by_tag = {tag: rate.hourly(n) for tag, n in plan.workers_by_tag.items()}
        return CostEstimate(None, by_tag, 0.0, source="a list", rates=rates, always=always)


def test_a_worker_costs_its_share_of_the_machine():
    prices = quoted_prices(Rented(), spec())
    assert prices.hourly_by_tag == {"model": 2.0, "post": 2.0}
    assert set(prices.always) == {"scheduler"}


def test_managers_are_counted_where_they_have_machines():
    assert set(quoted_prices(Rented(), spec(), detached=True).always) == {"scheduler", "manager"}
    here = dataclasses.replace(spec(), options={"manager": "here"})
    assert set(quoted_prices(Rented(), here, detached=True).always) == {"scheduler"}


def test_prices_of_the_manifest_come_before_those_of_the_provider():
    own = dataclasses.replace(spec(), prices={"model": 0.25})
    prices = quoted_prices(Rented(), own)
    assert prices.hourly_by_tag == {"model": 0.25, "post": 2.0}
    rate = prices.rates["model"]
    assert (rate.units, rate.price.per_hour, rate.price.spot_per_hour) == (1, 0.25, None)
    assert (rate.price.date, rate.price.origin) == (None, "manifest")
    assert prices.source == "prices of target 't'; a list"
    by_cores = dataclasses.replace(spec(), price_per_core_hour=0.1, prices={"model": 0.25})
    assert quoted_prices(object(), by_cores).hourly_by_tag["model"] == 0.25
    assert quoted_prices(object(), by_cores).hourly_by_tag["post"] == pytest.approx(
        0.1 * by_cores.components["post"].cpus
    )


def test_a_target_that_has_not_run_is_planned_with_less_confidence_and_says_why(tmp_path, ran):
    ran(*[("model", "sim", 30, 5.0)], target="laptop")
    task = TaskSpec("sim", "model", count=40)
    new = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    (reason,) = [r for r in new.reasons if "are from target" in r]
    assert "from target laptop; t has not run yet" in reason.replace("target t ", "t ")
    assert (new.transferred, new.tasks["sim"].measured_on) == (1.0, {"laptop": 30})
    ran(("model", "sim", 30, 5.0))
    used = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    assert used.transferred == 0
    assert used.tasks["sim"].measured_on == {"laptop": 30, "t": 30}
    assert new.confidence < used.confidence - 0.2
    (low, high), (narrow_low, narrow_high) = new.predicted_interval_s, used.predicted_interval_s
    assert low < narrow_low < narrow_high < high


def test_the_speed_of_a_target_is_learned_from_tasks_on_both(tmp_path, ran):
    ran(("model", "sim", 30, 5.0), ("post", "sum", 30, 5.0), target="laptop")
    ran(("model", "sim", 30, 20.0))
    tasks = (TaskSpec("sim", "model", count=4), TaskSpec("sum", "post", count=4))
    known = gather(spec(*tasks), runs_dir=tmp_path)
    assert 10 < known.forecasts["sum"].mean_s < 20
    assert 0 < known.forecasts["sim"].error < known.forecasts["sum"].error
    assert dict(known.forecasts["sum"].measured_on) == {"laptop": 30}


def test_outcomes_of_transferred_plans_decide_the_confidence_of_the_next_one(tmp_path, ran):
    ran(("model", "sim", 8, 5.0), target="laptop")
    plan = {"predicted_time_s": 5.0, "transferred": 1.0}
    task = TaskSpec("sim", "model", count=8)
    before = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    for _ in range(4):
        ran(("model", "sim", 8, 50.0), plan=plan, target="cloud")
    known = gather(spec(task), runs_dir=tmp_path)
    assert [past.ratio for past in known.past_transfers] == [10.0] * 4
    after = make_plan(spec(task), "0" * 64, known)
    assert after.confidence < before.confidence / 2
    assert any("4 earlier predictions from other places, 0 held" in r for r in after.reasons)


def on(machine, *kinds, target="t", **values):
    """A run on one kind of machine: (tag, name, count, seconds) for each kind of call."""
    calls = tuple(
        CallRecord(tag, name, seconds, machine=machine)
        for tag, name, count, seconds in kinds
        for _ in range(count)
    )
    return EarlierRun("run", target, "completed", calls, span_s=kinds[0][3], **values)


def test_two_kinds_of_machines_of_one_target_are_two_places():
    history = [
        on("new", ("model", "sim", 30, 1.0)),
        on("old", ("model", "sim", 30, 5.0), ("post", "sum", 30, 5.0)),
    ]
    tasks = (TaskSpec("sim", "model", count=4), TaskSpec("sum", "post", count=4))
    known = knowledge_of(spec(*tasks), history)
    assert known.machines == ("new",)
    # The task with calls on both keeps nearly its own times, and teaches the ratio for the other.
    assert known.forecasts["sum"].mean_s < 2.5
    assert dict(known.forecasts["sim"].measured_on) == {"t": 30, "t on old": 30}
    assert dict(known.forecasts["sum"].measured_on) == {"t on old": 30}
    assert known.forecasts["sim"].mean_s < 1.2 < known.forecasts["sum"].mean_s
    made = make_plan(spec(*tasks), "0" * 64, known)
    assert (made.machines, made.to_dict()["machines"]) == (("new",), ["new"])
    (reason,) = [r for r in made.reasons if "Running times of sum" in r]
    assert "from target t on old; target t has not run sum on new" in reason


def test_the_kind_of_machine_that_a_target_had_last_is_planned_for():
    history = [
        on("other", ("model", "sim", 30, 9.0), target="elsewhere"),
        on("old", ("model", "sim", 30, 5.0)),
        on("new", ("model", "sim", 30, 1.0)),
    ]
    known = knowledge_of(spec(TaskSpec("sim", "model")), history)
    assert (known.machines, known.ran_here) == (("old",), True)
    assert known.forecasts["sim"].mean_s > 4
    told = knowledge_of(spec(TaskSpec("sim", "model")), history, machine="new")
    assert told.forecasts["sim"].mean_s < 1.5


def test_the_difference_of_machines_is_no_variation_from_run_to_run():
    history = [on(m, ("model", "sim", 30, s)) for m, s in (("b", 5.0), ("a", 1.0), ("b", 5.0))]
    known = knowledge_of(spec(TaskSpec("sim", "model")), history)
    assert [level.log_ratio for level in known.run_spread.levels] == [0.0, 0.0]


def test_records_without_kinds_of_machines_count_for_the_target(tmp_path, ran):
    ran(("model", "sim", 20, 5.0))
    assert gather(spec(TaskSpec("sim", "model")), runs_dir=tmp_path).machines == ()
    ran(("model", "sim", 20, 7.0), machine="new")
    forecast = gather(spec(TaskSpec("sim", "model")), runs_dir=tmp_path).forecasts["sim"]
    assert (forecast.samples, forecast.mean_s) == (40, 6.0)
    assert (dict(forecast.measured_on), forecast.error) == ({"t": 40}, 0.0)


def test_runs_on_machines_that_the_plan_did_not_expect_are_outcomes_of_transfers():
    history = [
        on("new", ("model", "sim", 8, 60.0), predicted_s=50.0),
        on("new", ("model", "sim", 8, 50.0), predicted_s=5.0),
        on("old", ("model", "sim", 8, 5.0), predicted_s=5.0),
    ]
    known = knowledge_of(spec(TaskSpec("sim", "model")), history)
    assert [past.ratio for past in known.past_transfers] == [10.0]
    assert [past.ratio for past in known.past_predictions] == [1.2]


def test_transfers_that_were_far_off_widen_the_intervals_of_the_next_ones(tmp_path, ran):
    ran(("model", "sim", 30, 5.0), target="laptop")
    task = TaskSpec("sim", "model", count=40)

    def width():
        made = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
        low, high = made.predicted_interval_s
        return high / low

    before = width()
    plan = {"predicted_time_s": 5.0, "transferred": 1.0}
    for _ in range(3):
        ran(("post", "other", 8, 50.0), plan=plan, target="cloud")
    assert width() > 2 * before


def test_transfers_that_were_right_narrow_the_intervals_of_the_next_ones(tmp_path, ran):
    ran(("model", "sim", 30, 5.0), target="laptop")
    task = TaskSpec("sim", "model", count=40)
    before = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    for _ in range(12):
        plan = {"predicted_time_s": 5.0, "transferred": 1.0}
        ran(("post", "other", 8, 5.0), plan=plan, target="cloud")
    after = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    (low, high), (wide_low, wide_high) = after.predicted_interval_s, before.predicted_interval_s
    assert high / low < 0.7 * wide_high / wide_low
    assert after.confidence > before.confidence + 0.2


def test_plans_of_known_places_do_not_count_what_transfers_turned_out_to_be(tmp_path, ran):
    for _ in range(4):
        ran(("post", "other", 8, 50.0), plan={"predicted_time_s": 5.0, "transferred": 1.0})
    ran(("model", "sim", 30, 5.0))
    task = TaskSpec("sim", "model", count=40)
    known = gather(spec(task), runs_dir=tmp_path)
    assert len(known.past_transfers) == 4
    alone = dataclasses.replace(known, past_transfers=())
    made, without = (make_plan(spec(task), "0" * 64, k) for k in (known, alone))
    assert made.confidence == without.confidence
    assert not any("other places" in reason for reason in made.reasons)


def test_earlier_runs_tell_whether_calls_wait_for_whole_tasks():
    tasks = TaskSpec("sim", "model"), TaskSpec("sum", "post", after=("sim",))
    sim, total = ("model", "sim"), ("post", "sum")

    def overlaps(*begins, count=4):
        runs = [
            EarlierRun("r", "t", "completed", counts={sim: 4, total: count},
                       spans={sim: Span(0.0, 100.0), total: Span(begin, 200.0)})
            for begin in begins
        ]  # fmt: skip
        return knowledge_of(spec(*tasks), runs).overlaps

    assert overlaps(30.0, 30.0) == {("sim", "sum"): pytest.approx(2.5 / 3)}
    assert overlaps(100.0, 99.5) == {("sim", "sum"): pytest.approx(0.5 / 3)}
    # One call that waits for the whole task tells nothing of tasks with several calls.
    assert overlaps(100.0, count=1) == {}
