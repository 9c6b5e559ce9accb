"""What calls take, by hand-computed examples."""

import random

import pytest

from scalable.scaling.task_model import (
    MOST_KINDS,
    Expectation,
    Kind,
    Sample,
    TaskModel,
    size_bucket,
)

SIMULATE = Kind("model", "simulate")


def test_nothing_known_is_the_guess_and_says_so():
    model = TaskModel(unknown_s=10)
    assert model.mean_s(SIMULATE) == 10
    forecast = model.forecast(SIMULATE)
    assert (forecast.source, forecast.samples, forecast.q50_s) == ("guess", 0, 10)
    assert forecast.q95_s > forecast.q80_s > forecast.q50_s


def test_the_manifests_word_is_taken_as_it_is():
    model = TaskModel({("model", "simulate"): Expectation(60.0, 2**30)})
    forecast = model.forecast(SIMULATE)
    assert (forecast.q50_s, forecast.q80_s, forecast.q95_s) == (60, 60, 60)
    assert (forecast.memory, forecast.source) == (2**30, "manifest")


def test_running_calls_count_before_any_has_ended():
    model = TaskModel({("model", "simulate"): Expectation(60.0)})
    assert model.mean_s(SIMULATE, [100.0] * 40) == 60 + 4000
    for _ in range(39):
        model.observe(Sample(SIMULATE, 200.0))
    assert model.mean_s(SIMULATE) == pytest.approx((60 + 39 * 200) / 40)


def test_earlier_runs_weigh_as_twenty_calls_at_most():
    model = TaskModel(history=[Sample(SIMULATE, 10.0)] * 1000)
    for _ in range(80):
        model.observe(Sample(SIMULATE, 20.0))
    assert model.mean_s(SIMULATE) == pytest.approx((20 * 10 + 80 * 20) / 100, rel=1e-4)


def test_a_size_with_few_samples_leans_on_its_task():
    small, large = size_bucket(10**3), size_bucket(10**9)
    assert small != large
    model = TaskModel()
    for _ in range(99):
        model.observe(Sample(Kind("model", "simulate", small), 1.0))
    model.observe(Sample(Kind("model", "simulate", large), 100.0))
    whole = model.mean_s(SIMULATE)
    assert model.mean_s(Kind("model", "simulate", large)) == pytest.approx((whole + 100) / 2)
    assert model.mean_s(Kind("model", "simulate", small)) == pytest.approx(1.0, rel=0.05)


def test_an_unknown_task_leans_on_the_others_of_its_component_and_on_the_guess():
    history = [Sample(Kind("model", "other"), 40.0)] * 5
    assert TaskModel(history=history, unknown_s=10).mean_s(SIMULATE) == pytest.approx(20)
    history.append(Sample(Kind("model", "long"), 4000.0))
    model = TaskModel(history=history, unknown_s=10)
    assert model.mean_s(SIMULATE) == pytest.approx((40 * 4000 * 10) ** (1 / 3))
    assert model.mean_s(Kind("else", "simulate"), []) == model.unknown_s


def test_quantiles_of_many_samples_are_theirs():
    model = TaskModel(history=[Sample(SIMULATE, float(i), i) for i in range(101)])
    forecast = model.forecast(SIMULATE)
    assert (forecast.mean_s, forecast.q50_s, forecast.q80_s, forecast.q95_s) == (50, 50, 80, 95)
    assert (forecast.memory, forecast.samples, forecast.source) == (95, 101, "history")


def test_quantiles_of_few_lognormal_samples_hold_for_the_next_one():
    draw = random.Random(5)
    held = 0
    for _ in range(1000):
        *seen, following = (draw.lognormvariate(3, 0.7) for _ in range(6))
        model = TaskModel(history=[Sample(SIMULATE, d) for d in seen])
        held += following <= model.forecast(SIMULATE).q80_s
    assert 0.74 <= held / 1000 <= 0.86


def test_the_rest_of_a_running_call():
    model = TaskModel(history=[Sample(SIMULATE, float(d)) for d in (10, 20, 30, 40, 50, 60)])
    assert model.residual_s(SIMULATE, 15) == pytest.approx(40 - 15)
    assert model.residual_s(SIMULATE, 100) == 50  # longer than any: half of what it took so far
    assert TaskModel(unknown_s=10).residual_s(SIMULATE, 2) == 8


def test_a_task_is_known_once_a_call_has_ended_or_where_it_is_expected():
    model = TaskModel({("model", "expected"): Expectation(60.0)})
    assert model.knows(Kind("model", "expected"))
    assert not model.knows(SIMULATE)
    model.observe(Sample(Kind("model", "other"), 5.0))
    assert not model.knows(SIMULATE)
    model.observe(Sample(SIMULATE, 5.0))
    assert model.knows(SIMULATE)


def test_values_that_are_no_durations_teach_nothing():
    model = TaskModel(history=[Sample(SIMULATE, float("nan")), Sample(SIMULATE, -1.0)])
    assert model.forecast(SIMULATE).source == "guess"


def test_names_without_end_take_memory_with_an_end():
    model = TaskModel()
    for number in range(2 * MOST_KINDS):
        model.observe(Sample(Kind("model", f"job-{number}"), 1.0 if number < MOST_KINDS else 3.0))
    assert len(model._records) <= MOST_KINDS + 1
    assert model.mean_s(Kind("model")) == pytest.approx(2.0, rel=0.01)  # all count
    model.observe(Sample(Kind("model", "job-1"), 3.0))
    assert model._records[Kind("model", "job-1")].count == 2  # a known one goes on
    model.observe(Sample(Kind("other", "job"), 5.0))
    assert model._records[Kind("other")].count == 1
