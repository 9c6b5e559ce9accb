"""The scaler's rules, one by one, by hand-computed examples."""

import random

import pytest

from scalable import AdaptiveScaler, ScaleDecision
from scalable.scaling import adaptive


def pending(tag, count, duration=None):
    task = {"tag": tag} if duration is None else {"tag": tag, "duration": duration}
    return [dict(task) for _ in range(count)]


def ended(tag, *durations):
    return [{"tag": tag, "duration_s": duration} for duration in durations]


@pytest.fixture
def clock(monkeypatch):
    """Monotonic time that the test moves."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def time(self):
            return 1.7e9 + self.now

    clock = Clock()
    monkeypatch.setattr(adaptive, "time", clock)
    return clock


def test_the_minimum_holds_whatever_the_load_is():
    decision = AdaptiveScaler(min_workers={"a": 2}).evaluate(pending("a", 1), {"a": 0})
    assert decision.workers_to_add == {"a": 2}
    assert AdaptiveScaler(min_workers={"a": 2}).evaluate([], {}).workers_to_add == {"a": 2}


def test_above_the_maximum_it_goes_down_to_it():
    scaler = AdaptiveScaler(max_workers={"a": 3})
    decision = scaler.evaluate(pending("a", 100), {"a": 5})
    assert (decision.workers_to_add, decision.workers_to_remove) == ({}, {"a": 2})
    assert "at most 3" in decision.reasoning


def test_without_bounds_a_tag_runs_from_zero_to_unlimited():
    assert AdaptiveScaler().evaluate(pending("a", 4000), {}).workers_to_add == {"a": 5000}
    assert AdaptiveScaler().evaluate([], {"a": 7}).workers_to_remove == {"a": 7}
    assert AdaptiveScaler(max_workers={"a": None}).evaluate(pending("a", 8), {"a": 1}).has_changes


@pytest.mark.parametrize(
    ("count", "active", "change"),
    [
        (9, 10, 2),  # 0.9: up to 9 / 0.8 = 11.25, so 12
        (8, 10, 0),  # 0.8 is not above it
        (4, 5, 0),
        (5, 10, 0),
        (2, 10, 0),  # 0.2 is not below it
        (1, 10, -8),  # 0.1: one task keeps the two workers that one task would be given
        (0, 10, -10),
        (1, 1, 1),
        (0, 0, 0),
    ],
)
def test_the_thresholds(count, active, change):
    decision = AdaptiveScaler().evaluate(pending("a", count), {"a": active})
    added = decision.workers_to_add.get("a", 0) - decision.workers_to_remove.get("a", 0)
    assert added == change
    assert decision.has_changes == (change != 0)


def test_each_tag_is_judged_by_its_own_load():
    decision = AdaptiveScaler().evaluate(pending("a", 8), {"a": 1, "b": 4, "c": 0})
    assert decision.workers_to_add == {"a": 9}
    assert decision.workers_to_remove == {"b": 4}


def test_worker_seconds_decide_how_many():
    def added(tasks, **arguments):
        decision = AdaptiveScaler().evaluate(tasks, {"a": 1}, **arguments)
        return decision.workers_to_add.get("a", 0)

    assert added(pending("a", 8, 600)) == added(pending("a", 8)) == 9
    # 40 s of work in short tasks are worth 8 tasks of 5 s.
    assert added(pending("a", 80, 0.5)) == 9
    # Nobody is done before the long one is: two share 199 s.
    assert added(pending("a", 1, 100) + pending("a", 99, 1)) == 2
    # What calls took lately counts for those that say nothing.
    assert added(pending("a", 80), recent_completions=ended("a", 0.5, 0.5)) == 9
    assert added(pending("a", 80), recent_completions=ended("b", 0.5)) == 99
    # Less than a worker's worth: above the threshold, and yet enough.
    assert added(pending("a", 80, 0.01)) == 0


def test_rows_of_a_record_are_completions():
    rows = [
        {"tag": "a", "duration_s": 10.0, "state": "succeeded"},
        {"tag": "a", "duration_s": 99.0, "state": "failed"},
        {"tag": "a", "duration_s": None, "state": "cancelled"},
        {"tag": None, "duration_s": 99.0, "state": "succeeded"},
        {"tag": "a"},
    ]
    scaler = AdaptiveScaler(max_workers={"a": 2})
    assert scaler.evaluate(pending("a", 4), {"a": 2}, rows).predicted_completion_time == 20


# What is predicted -------------------------------------------------------------------------------


def test_when_it_ends():
    scaler = AdaptiveScaler(max_workers={"a": 2, "b": 1})

    def seconds(tasks, **arguments):
        active = {"a": 2, "b": 1}
        return scaler.evaluate(tasks, active, **arguments).predicted_completion_time

    assert seconds([]) == 0
    assert seconds(pending("a", 5)) is None
    assert seconds(pending("a", 5, 10)) == 30
    assert seconds(pending("a", 5), recent_completions=ended("a", 10, 10)) == 30
    assert seconds(pending("a", 1, 10) + pending("b", 4, 7)) == 28  # side by side
    assert seconds(pending("a", 1, 10) + pending("b", 4)) is None
    # A task that says nothing takes as long as the others.
    assert seconds([*pending("a", 3, 10), {"tag": "a"}]) == 20


def test_when_it_ends_with_the_workers_that_the_decision_leads_to():
    scaler = AdaptiveScaler()
    assert scaler.evaluate(pending("a", 8, 10), {"a": 0}).predicted_completion_time == 10
    nobody = AdaptiveScaler(max_workers={"a": 0})
    assert nobody.evaluate(pending("a", 8, 10), {"a": 0}).predicted_completion_time is None


def test_many_tasks_are_predicted_too():
    scaler = AdaptiveScaler(max_workers={"a": 10})
    decision = scaler.evaluate(pending("a", 20_000, 3), {"a": 10})
    assert decision.predicted_completion_time == 6000


def test_confidence_is_low_without_evidence_and_grows_with_it():
    def confidence(samples):
        source = random.Random(1)
        lengths = [source.lognormvariate(3, 0.3) for _ in range(samples)]
        scaler = AdaptiveScaler(max_workers={"a": 4})
        return scaler.evaluate(pending("a", 40), {"a": 4}, ended("a", *lengths)).confidence

    none, one, some, many = (confidence(n) for n in (0, 1, 8, 300))
    assert none == 0
    assert one < 0.5
    assert one < some < many
    assert many > 0.9


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
        scaler = AdaptiveScaler({"a": 2}, {"a": 2})
        for _ in range(20):
            scaler.evaluate(pending("a", 4, 10), {"a": 2})
            clock.now += actual_s - 0.1
            scaler.evaluate(pending("a", 1, 10), {"a": 2})
            clock.now += 0.2
            scaler.evaluate([], {"a": 2})
        return scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence

    assert confidence(60) < 0.3 < 0.7 < confidence(20)


def test_new_work_says_nothing_of_earlier_predictions(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 2})
    before = scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence
    for count in (8, 20, 0):
        clock.now += 100
        scaler.evaluate(pending("a", count, 10), {"a": 2})
    clock.now += 1
    # The one that was judged is that of 20 tasks: 100 s, of which 50 to the middle of two looks.
    assert scaler.evaluate(pending("a", 4, 10), {"a": 2}).confidence < before


# Cooldown ----------------------------------------------------------------------------------------


def test_a_cooldown_follows_a_change_and_is_named(clock):
    scaler = AdaptiveScaler(cooldown_seconds=60)
    assert scaler.evaluate(pending("a", 4), {"a": 1}).has_changes
    clock.now += 59
    quiet = scaler.evaluate(pending("a", 40), {"a": 5})
    assert not quiet.has_changes
    assert "cooldown" in quiet.reasoning
    clock.now += 2
    assert scaler.evaluate(pending("a", 40), {"a": 5}).has_changes


def test_a_decision_that_changes_nothing_starts_no_cooldown(clock):
    scaler = AdaptiveScaler()
    assert not scaler.evaluate(pending("a", 5), {"a": 10}).has_changes
    assert scaler.evaluate(pending("a", 10), {"a": 10}).workers_to_add == {"a": 3}
    clock.now += 30
    assert not scaler.evaluate(pending("a", 20), {"a": 13}).has_changes
    clock.now += 31  # the one in between has not made it longer
    assert scaler.evaluate(pending("a", 20), {"a": 13}).has_changes


def test_a_cooldown_is_of_one_direction_and_one_tag(clock):
    scaler = AdaptiveScaler()
    scaler.evaluate(pending("a", 4), {"a": 1, "b": 1})
    assert scaler.evaluate([], {"a": 5, "b": 0}).workers_to_remove == {"a": 5}
    assert scaler.evaluate(pending("b", 4), {"a": 0, "b": 0}).workers_to_add == {"b": 5}
    assert scaler.evaluate(pending("a", 4), {"a": 0}).reasoning.count("cooldown") == 1


def test_bounds_hold_in_a_cooldown_too(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 8})
    assert scaler.evaluate(pending("a", 4), {"a": 2}).workers_to_add == {"a": 3}
    assert scaler.evaluate(pending("a", 40), {"a": 1}).workers_to_add == {"a": 1}
    assert scaler.evaluate(pending("a", 40), {"a": 11}).workers_to_remove == {"a": 3}


def test_a_cooldown_can_be_reset(clock):
    scaler = AdaptiveScaler()
    scaler.evaluate(pending("a", 4), {"a": 1})
    scaler.reset_cooldown()
    assert scaler.evaluate(pending("a", 40), {"a": 5}).has_changes


# Around it ---------------------------------------------------------------------------------------


def test_decisions_are_remembered_with_their_time(clock):
    scaler = AdaptiveScaler()
    first = scaler.evaluate(pending("a", 4), {"a": 1})
    second = scaler.evaluate([], {"a": 0})
    assert scaler.decision_history == [first, second]
    assert first.timestamp == 1.7e9 + clock.now
    assert "a: +4 workers" in first.reasoning


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_workers": {"a": 3}, "max_workers": {"a": 2}},
        {"min_workers": {"a": -1}},
        {"max_workers": {"a": 1.5}},
        {"min_workers": {"a": True}},
        {"scale_up_threshold": 0.2, "scale_down_threshold": 0.8},
        {"scale_up_threshold": 0},
        {"scale_down_threshold": -0.1},
        {"scale_up_threshold": float("nan")},
        {"cooldown_seconds": -1},
    ],
)
def test_what_is_no_range_is_refused(arguments):
    with pytest.raises(ValueError, match=r"."):
        AdaptiveScaler(**arguments)


@pytest.mark.parametrize(
    ("tasks", "active", "message"),
    [
        ([{"tag": "a"}, {"name": "x"}], {}, r"pending_tasks\[1\] has no tag"),
        ([{"tag": "a", "duration": -1}], {}, "duration -1"),
        ([{"tag": "a", "duration": float("nan")}], {}, "duration nan"),
        ([], {"a": -1}, r"active_workers\['a'\] is -1"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(tasks, active, message):
    scaler = AdaptiveScaler()
    with pytest.raises(ValueError, match=message):
        scaler.evaluate(tasks, active)
    assert scaler.decision_history == []
    assert scaler.evaluate(pending("a", 4), {"a": 1}).has_changes


# A decision --------------------------------------------------------------------------------------


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


def test_a_decision_without_changes_says_so():
    assert not ScaleDecision().has_changes
    assert not ScaleDecision({"a": 0}, {"b": 0}).has_changes
