"""What decisions say of the future, and how they are carried out."""

import random

import pytest

from scalable import AdaptiveScaler, ScaleDecision


def pending(tag, count, duration=None):
    task = {"tag": tag} if duration is None else {"tag": tag, "duration": duration}
    return [dict(task) for _ in range(count)]


def ended(tag, *durations):
    return [{"tag": tag, "duration_s": duration} for duration in durations]


def test_a_length_is_assumed_as_soon_as_a_call_runs_or_has_ended(clock):
    def looked(scaler, active, ended=()):
        decision = scaler.evaluate(pending("a", 4), {"a": active}, ended)
        return decision.predicted_completion_time, decision.confidence

    nothing = None, 0.0
    assert looked(AdaptiveScaler({"a": 2}, {"a": 2}), 0) == nothing
    seconds, confidence = looked(AdaptiveScaler({"a": 2}, {"a": 2}), 2)
    assert seconds == 20
    assert 0 < confidence < 0.2
    # A call of another tag has ended, for a time that nobody knows.
    assert looked(AdaptiveScaler({"a": 2}, {"a": 2}), 0, [{"tag": "b"}])[0] == 20
    assert looked(AdaptiveScaler(max_workers={"a": 0}), 0, [{"tag": "b"}]) == nothing


def test_calls_that_run_on_and_on_are_expected_to_be_long(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 2}, clock=clock)

    def seconds(count, ended=()):
        clock.now += 100
        return scaler.evaluate(pending("a", count), {"a": 2}, ended).predicted_completion_time

    assert [seconds(4), seconds(4), seconds(4)] == [20, 400, 800]
    assert seconds(3) == 20  # one has ended
    assert seconds(3) == 400
    assert seconds(3, [{"tag": "a"}]) == 20  # one has ended, and another came
    assert seconds(3, ended("a", 7)) == 14


def test_wrong_predictions_from_assumed_lengths_are_not_held_against_others(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 2}, clock=clock)
    before = AdaptiveScaler({"a": 2}, {"a": 2}).evaluate(pending("a", 4, 10), {"a": 2}).confidence
    for _ in range(20):
        scaler.evaluate(pending("a", 4), {"a": 2})
        clock.now += 1000
        scaler.evaluate([], {"a": 2})
    assert scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence == before


@pytest.mark.slow
def test_confidence_is_how_often_the_prediction_holds():
    """Of many predictions with about 60 % confidence about 60 % come true, and so on."""
    source = random.Random(2)
    claimed, held = [], []
    for _ in range(200):
        spread = source.choice([0.1, 0.4, 1.0])
        center = source.uniform(0, 5)
        known = [source.lognormvariate(center, spread) for _ in range(source.choice([4, 12, 60]))]
        tasks, workers = source.choice([(3, 2), (30, 4), (6, 12)])
        scaler = AdaptiveScaler({"a": workers}, {"a": workers}, cooldown_seconds=0)
        decision = scaler.evaluate(pending("a", tasks), {"a": workers}, ended("a", *known))
        free = [0.0] * workers
        for _ in range(tasks):
            free.sort()
            free[0] += source.lognormvariate(center, spread)
        ratio = max(free) / decision.predicted_completion_time
        claimed.append(decision.confidence)
        held.append(0.8 <= ratio <= 1.25)
    assert sum(claimed) / 200 == pytest.approx(sum(held) / 200, abs=0.1)
    halves = sorted(zip(claimed, held, strict=True))
    for half in (halves[:100], halves[100:]):
        says, is_ = (sum(column) / 100 for column in zip(*half, strict=True))
        assert says == pytest.approx(is_, abs=0.15)


def test_predictions_that_fail_cost_confidence(clock):
    def confidence(actual_s):
        scaler = AdaptiveScaler({"a": 2}, {"a": 2}, clock=clock)
        for _ in range(20):
            scaler.evaluate(pending("a", 4, 10), {"a": 2})
            clock.now += actual_s - 0.1
            scaler.evaluate(pending("a", 1, 10), {"a": 2})
            clock.now += 0.2
            scaler.evaluate([], {"a": 2})
        return scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence

    assert confidence(60) < 0.3 < 0.7 < confidence(20)


def test_new_work_says_nothing_of_earlier_predictions(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 2}, clock=clock)
    before = scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence
    for count in (8, 20, 0):
        clock.now += 100
        scaler.evaluate(pending("a", count, 10), {"a": 2})
    clock.now += 1
    # The one that was judged is that of 20 tasks: 100 s, of which 50 to the middle of two looks.
    assert scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence < before


@pytest.mark.parametrize(
    ("add", "remove", "active", "wanted", "count"),
    [
        (3, 0, 2, 2, 5),
        (3, 0, None, 2, 5),
        (3, 0, 0, 2, 3),  # two were asked for already, and are under way
        (3, 0, 0, 5, 5),
        (2, 0, 5, 2, 4),  # three of the active ones are leaving
        (0, 3, 5, 5, 2),
        (0, 3, 5, 2, 2),  # they are leaving already
        (0, 3, 5, 9, 6),
        (0, 9, None, 2, 0),
    ],
)
def test_a_decision_is_relative_to_what_is_wanted(add, remove, active, wanted, count):
    decision = ScaleDecision(
        workers_to_add={"a": add} if add else {},
        workers_to_remove={"a": remove} if remove else {},
        active_workers={} if active is None else {"a": active},
    )
    assert decision.has_changes
    assert decision.counts({"a": wanted}) == {"a": count}
