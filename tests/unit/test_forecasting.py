"""Records of runs and the manifest become what a plan rests on."""

import dataclasses

import pytest

from scalable.forecasting import gather, knowledge_of, quoted_prices
from scalable.model import ComponentSpec, CostEstimate, DeploymentSpec, Price, Rate, TaskSpec
from scalable.planning import PastPrediction, PlanRequest, make_plan
from scalable.runs.directory import RunDirectory
from scalable.runs.history import EarlierRun, NameSpan


def spec(*tasks, **fields):
    components = {tag: ComponentSpec(tag) for tag in ("model", "post")}
    return DeploymentSpec("p", "t", "slurm", components, {t.name: t for t in tasks}, **fields)


@pytest.fixture
def ran(tmp_path):
    """Record a run: (tag, name, count, seconds) for each kind of call."""

    def write(*kinds, target="t", plan=None, startup=None, memory=None):
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
    assert known.forecasts["sim"].samples == 2


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
    assert "from target laptop; target t has not run yet" in reason
    assert any("no task of sim was measured on this target" in r for r in new.reasons)
    assert new.tasks["sim"].measured_on == {"laptop": 30}
    ran(("model", "sim", 30, 5.0))
    used = make_plan(spec(task), "0" * 64, gather(spec(task), runs_dir=tmp_path))
    assert used.tasks["sim"].measured_on == {"t": 30}
    assert new.confidence < used.confidence - 0.2
    (low, high), (narrow_low, narrow_high) = new.predicted_interval_s, used.predicted_interval_s
    assert low < narrow_low < narrow_high < high


def test_tasks_without_calls_on_the_target_are_those_of_other_targets(tmp_path, ran):
    ran(("model", "sim", 30, 5.0), ("post", "sum", 30, 5.0), target="laptop")
    ran(("model", "sim", 3, 20.0))
    tasks = (TaskSpec("sim", "model", count=4), TaskSpec("sum", "post", count=4))
    known = gather(spec(*tasks), runs_dir=tmp_path)
    own, other = known.forecasts["sim"], known.forecasts["sum"]
    assert (own.mean_s, own.samples, dict(own.measured_on), own.elsewhere) == (
        20,
        3,
        {"t": 3},
        False,
    )
    assert (other.mean_s, dict(other.measured_on), other.elsewhere) == (5.0, {"laptop": 30}, True)
    made = make_plan(spec(*tasks), "0" * 64, known)
    (reason,) = [r for r in made.reasons if "are from target" in r]
    assert "Running times of sum are from target laptop; target t has not run sum yet" in reason


def test_earlier_runs_tell_whether_calls_wait_for_whole_tasks():
    tasks = TaskSpec("sim", "model"), TaskSpec("sum", "post", after=("sim",))
    sim, total = ("model", "sim"), ("post", "sum")

    def overlaps(*begins, count=4):
        runs = [
            EarlierRun(target="t", status="completed", counts={sim: 4, total: count},
                       spans={sim: NameSpan(0.0, 100.0), total: NameSpan(begin, 200.0)})
            for begin in begins
        ]  # fmt: skip
        return knowledge_of(spec(*tasks), runs).overlaps

    assert overlaps(30.0, 30.0) == {("sim", "sum"): pytest.approx(2.5 / 3)}
    assert overlaps(100.0, 99.5) == {("sim", "sum"): pytest.approx(0.5 / 3)}
    # One call that waits for the whole task tells nothing of tasks with several calls.
    assert overlaps(100.0, count=1) == {}
