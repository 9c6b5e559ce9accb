"""How far predictions can be relied on."""

import math
import random
from statistics import median

import pytest
from plans import calls, problem

from scalable.model import Forecast
from scalable.planning import PastPrediction
from scalable.planning.draws import draw_runs
from scalable.planning.uncertainty import confidence, evidence_of, interval, overhead


def test_confidence_is_the_share_of_predictions_that_held():
    past_predictions = [PastPrediction(100.0, actual) for actual in (100.0, 100.0, 100.0, 300.0)]
    assert confidence(past_predictions, [], 1.0) == (1 + 3) / (4 + 2)
    draws = [0.79, 0.8, 1.0, 1.25, 1.26]
    assert confidence([], draws, 1.0) == 3 / 5
    assert confidence(past_predictions, draws, 1.0) == (2 * 3 / 5 + 3) / (2 + 4)


@pytest.mark.parametrize(("runs", "most"), [(0, 3 / 4), (3, 6 / 7), (20, 23 / 24)])
def test_confidence_is_never_certain(runs, most):
    assert confidence([PastPrediction(5.0, 5.0)] * runs, [5.0] * 200, 5.0) == most


def test_few_outcomes_change_no_prediction():
    assert overhead([PastPrediction(1.0, 9.0)] * 2) == 1
    assert overhead([PastPrediction(1.0, 9.0)] * 3) == 9
    assert overhead([PastPrediction(9.0, 9.0, overhead=9.0)] * 3) == 9


@pytest.mark.slow
def test_confidence_is_calibrated_on_runs_that_it_has_not_seen():
    chance = random.Random(20260101)
    said = {}
    for _ in range(6000):
        bias, spread = math.exp(chance.gauss(0, 0.5)), chance.choice([0.05, 0.15, 0.25, 0.5, 1.0])
        ratios = [bias * math.exp(chance.gauss(0, spread)) for _ in range(chance.randint(5, 30))]
        past_predictions = [PastPrediction(100.0, 100.0 * ratio) for ratio in ratios[:-1]]
        held = 0.8 <= ratios[-1] / overhead(past_predictions) <= 1.25
        share = confidence(past_predictions, [], 100.0)
        said.setdefault(int(share * 5), []).append((share, held))
    assert sum(len(found) >= 200 for found in said.values()) >= 4
    for found in said.values():
        if len(found) >= 200:
            shares, holds = zip(*found, strict=True)
            assert abs(sum(shares) / len(shares) - sum(holds) / len(holds)) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("samples", [5, 20, 100])
@pytest.mark.parametrize("spread", [0.2, 0.8])
def test_before_any_outcome_it_promises_what_comes_true(samples, spread):
    chance = random.Random(11)
    promised, held = [], []
    for _ in range(120):
        mean = 60 * math.exp(chance.gauss(0, 1))

        def length(mean=mean):
            return mean * math.exp(chance.gauss(0, spread))

        seen = sorted(length() for _ in range(samples))
        middle = math.exp(sum(map(math.log, seen)) / samples)
        forecast = Forecast(
            sum(seen) / samples,
            middle,
            middle * math.exp(0.8416 * spread),
            middle * math.exp(1.6449 * spread),
            samples=samples,
            source="history",
            durations_s=tuple(seen),
        )
        work = [calls("x", "a", 40, forecast)]
        given = problem(work)
        predicted = given.time_s((4,))
        draws = [draw.time_s for draw in draw_runs(given.predicted, work, (4,))]
        promised.append(confidence([], draws, predicted))
        free = [0.0] * 4
        for _ in range(40):
            free[free.index(min(free))] += length()
        held.append(0.8 <= max(free) * math.exp(chance.gauss(0, 0.05)) / predicted <= 1.25)
    assert sum(promised) / 120 <= sum(held) / 120 + 0.1
    if samples >= 20:  # without an outcome, at most 3/4 is promised
        assert sum(promised) / 120 >= min(sum(held) / 120, 0.75) - 0.15


def test_evidence_grows_with_samples_and_is_nothing_for_a_guess():
    def evidence(samples, source="history"):
        forecast = Forecast(1.0, 1.0, 1.0, 1.0, samples=samples, source=source)
        return evidence_of([calls("x", "a", 1, forecast)])

    assert [evidence(n) for n in (0, 5, 45)] == [0, 0.5, 0.9]
    assert evidence(0, "manifest") == pytest.approx(1 / 6)
    assert evidence(0, "guess") == 0


def test_draws_are_the_same_each_time_and_lie_around_the_prediction():
    uneven = Forecast(70.0, 60.0, 100.0, 150.0, samples=30, source="history")
    for count in (30, 5000):
        work = [calls("x", "a", count, uneven), calls("y", "b", 5, 10, after=["x"])]
        given = problem(work)
        draws = draw_runs(given.predicted, work, (7, 2))
        assert draws == draw_runs(given.predicted, work, (7, 2))
        times = [draw.time_s for draw in draws]
        assert median(times) == pytest.approx(given.time_s((7, 2)), rel=0.15)
        low, high = interval([], times, given.time_s((7, 2)))
        assert low < given.time_s((7, 2)) < high


def test_with_enough_outcomes_the_interval_is_theirs():
    past_predictions = [PastPrediction(100.0, 100.0 * (1 + i / 10)) for i in range(11)]
    low, high = interval(past_predictions, [], 150.0)
    assert (low, high) == (pytest.approx(110.0), pytest.approx(190.0))
