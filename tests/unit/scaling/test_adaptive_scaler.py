"""The scaler that users ask: what it promises, clause by clause."""

import math

import pytest

from scalable import AdaptiveScaler


def pending(count, tag="a", **more):
    return [{"tag": tag, **more}] * count


def test_tags_without_bounds_run_from_zero_to_unlimited():
    scaler = AdaptiveScaler({"a": 1}, {"a": 2})
    assert scaler.evaluate(pending(1000, "b"), {"b": 1}).workers_to_add["b"] == 1250 - 1
    assert AdaptiveScaler().evaluate([], {"b": 7}).workers_to_remove == {"b": 7}


def test_the_minimum_of_a_tag_that_is_never_counted_is_added_once():
    scaler = AdaptiveScaler({"b": 2}, cooldown_seconds=0)
    assert scaler.evaluate([], {"a": 0}).workers_to_add == {"b": 2}
    assert scaler.evaluate([], {"a": 0}).changes == {}
    assert scaler.evaluate(pending(8, "b"), {"a": 0}).workers_to_add == {"b": 8}
    assert scaler.evaluate([], {"b": 3}).workers_to_remove == {"b": 1}
    # Once it was counted, a missing count is zero, as in a Counter.
    assert scaler.evaluate([], {}).workers_to_add == {"b": 2}
    assert scaler.evaluate([], {}).workers_to_add == {"b": 2}


@pytest.mark.parametrize(
    ("count", "active", "change"),
    [(9, 10, 2), (8, 10, 0), (5, 10, 0), (2, 10, 0), (1, 10, -8), (0, 10, -10), (1, 1, 1)],
)
def test_the_thresholds(count, active, change):
    decision = AdaptiveScaler().evaluate(pending(count), {"a": active})
    assert decision.changes == ({"a": change} if change else {})
    assert decision.has_changes is (change != 0)


def test_worker_seconds_decide_where_running_times_are_known():
    def adds(duration):
        return AdaptiveScaler().evaluate(pending(100, duration=duration), {"a": 1}).workers_to_add

    assert adds(0.01) == {}  # one second of work in all
    assert adds(0.5) == {"a": 9}  # 50 s of work in five seconds
    assert adds(600) == {"a": 99}  # never more workers than calls


@pytest.mark.parametrize(("tasks", "words"), [
    ([{"tag": "a", "duration": 0.1}] * 20, "20 pending on 2 workers, enough for 2 worker-sec"),
    ([{"tag": "a"}] * 20, "20 pending on 2 workers, bounds 0 .. 2"),
    ([{"tag": "a"}], "all loads are between the thresholds"),
])  # fmt: skip
def test_it_says_why_nothing_changes(tasks, words):
    decision = AdaptiveScaler(max_workers={"a": 2}).evaluate(tasks, {"a": 2})
    assert not decision.has_changes
    assert words in decision.reasoning


def test_completions_are_remembered_and_tell_how_long_calls_take():
    scaler = AdaptiveScaler(cooldown_seconds=0)
    ended = [{"tag": "a", "duration_s": 10.0}] * 4
    assert scaler.evaluate([], {"a": 0}, ended).has_changes is False
    decision = scaler.evaluate(pending(6), {"a": 2})
    assert decision.workers_to_add == {"a": 4}
    assert decision.predicted_completion_time == 10.0


def test_the_predicted_time():
    scaler = AdaptiveScaler(max_workers={"a": 2, "b": 1})
    assert scaler.evaluate([], {"a": 0}).predicted_completion_time == 0.0
    assert scaler.evaluate(pending(3), {"a": 0}).predicted_completion_time is None
    tasks = [*pending(5, duration=10), *pending(1, "b", duration=15)]
    assert scaler.evaluate(tasks, {"a": 2, "b": 1}).predicted_completion_time == 30.0
    nobody = AdaptiveScaler(max_workers={"a": 0})
    assert nobody.evaluate(pending(1, duration=1), {}).predicted_completion_time is None


def test_confidence_follows_what_is_known():
    def confidence(durations, count=10):
        ended = [{"tag": "a", "duration_s": d} for d in durations]
        return AdaptiveScaler().evaluate(pending(count), {"a": 2}, ended).confidence

    assert 0 < confidence([]) < 0.2
    assert confidence([]) < confidence([10, 10]) < confidence([10] * 50) < 1
    assert confidence([1, 100] * 20) < confidence([9, 11] * 20)
    assert AdaptiveScaler().evaluate([], {}).confidence == 1.0


def test_the_cooldown_of_a_tag_counts_for_both_directions(clock):
    scaler = AdaptiveScaler(cooldown_seconds="1 min", clock=clock)
    assert scaler.evaluate(pending(8), {"a": 1}).workers_to_add == {"a": 9}
    for load in (pending(80), []):
        again = scaler.evaluate(load, {"a": 10})
        assert not again.has_changes
        assert "cooldown" in again.reasoning
    assert scaler.evaluate(pending(8, "b"), {"a": 10, "b": 1}).workers_to_add == {"b": 9}
    clock.now += 59
    assert not scaler.evaluate([], {"a": 10}).has_changes
    clock.now += 1
    assert scaler.evaluate([], {"a": 10}).workers_to_remove == {"a": 10}
    assert not scaler.evaluate(pending(80), {"a": 1}).has_changes
    clock.now += 60
    assert scaler.evaluate(pending(80), {"a": 10}).workers_to_add == {"a": 90}


def test_a_decision_that_changes_nothing_starts_no_cooldown(clock):
    scaler = AdaptiveScaler(clock=clock)
    assert not scaler.evaluate(pending(1), {"a": 2}).has_changes
    assert scaler.evaluate(pending(8), {"a": 2}).has_changes


def test_workers_that_have_not_connected_yet_are_not_added_twice(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 10}, clock=clock)
    assert scaler.evaluate(pending(4), {"a": 0}).workers_to_add == {"a": 5}
    again = scaler.evaluate(pending(4), {"a": 0})  # the user counts connected workers
    assert not again.has_changes
    assert "cooldown" in again.reasoning


def test_bounds_that_are_set_anew_do_not_wait_for_the_cooldown(clock):
    scaler = AdaptiveScaler({"a": 2}, {"a": 10}, clock=clock)
    assert scaler.evaluate(pending(40), {"a": 2}).workers_to_add == {"a": 8}
    scaler.max_workers["a"] = 6
    lower = scaler.evaluate([], {"a": 10})  # to the nearest bound, not to what the load says
    assert lower.workers_to_remove == {"a": 4}
    assert "new bounds 2 .. 6" in lower.reasoning
    assert not scaler.evaluate([], {"a": 10}).has_changes
    clock.now += 60
    assert scaler.evaluate([], {"a": 6}).workers_to_remove == {"a": 4}
    scaler.min_workers["a"] = 3
    assert scaler.evaluate([], {"a": 2}).workers_to_add == {"a": 1}


def test_reset_cooldown(clock):
    scaler = AdaptiveScaler(clock=clock)
    scaler.evaluate(pending(8), {"a": 1})
    scaler.reset_cooldown()
    assert scaler.evaluate(pending(80), {"a": 10}).has_changes


def test_every_decision_is_in_the_history():
    scaler = AdaptiveScaler()
    decisions = [scaler.evaluate(pending(n), {"a": 1}) for n in (0, 1)]
    assert scaler.decision_history == decisions
    assert decisions[0].timestamp <= decisions[1].timestamp


def test_the_history_keeps_the_latest_decisions(monkeypatch):
    monkeypatch.setattr("scalable.scaling.adaptive.KEPT_DECISIONS", 3)
    scaler = AdaptiveScaler()
    decisions = [scaler.evaluate(pending(n), {"a": 1}) for n in range(5)]
    assert scaler.decision_history == decisions[2:]


@pytest.mark.parametrize(("tasks", "active", "words"), [
    ([{"name": "x"}], {}, "needs a 'tag'"),
    (pending(1, duration=-1), {}, "-1 is not a valid number of seconds"),
    (pending(1, duration=math.nan), {}, "nan is not a valid number of seconds"),
    (pending(1, duration=10**400), {}, "seconds"),
    (pending(2, duration=1e308), {}, "1e[+]308 is not a valid number of seconds"),
    ([None], {}, "needs a 'tag'"),
    ([], {"a": -1}, "-1 is not a valid number of active workers"),
])  # fmt: skip
def test_bad_input_decides_nothing(tasks, active, words):
    scaler = AdaptiveScaler()
    with pytest.raises(ValueError, match=words):
        scaler.evaluate(tasks, active)
    assert scaler.decision_history == []


@pytest.mark.parametrize("options", [
    {"min_workers": {"a": 3}, "max_workers": {"a": 2}},
    {"min_workers": {"a": -1}},
    {"min_workers": {"a": 1.5}},
    {"min_workers": {"a": math.inf}},
    {"max_workers": {"a": 2.5}},
    {"max_workers": {"a": None}},
    {"cooldown_seconds": math.nan},
    {"scale_up_threshold": 0.2, "scale_down_threshold": 0.8},
    {"cooldown_seconds": -1},
    {"cooldown_seconds": "soon"},
])  # fmt: skip
def test_contradictions_are_refused(options):
    with pytest.raises(
        ValueError,
        match="not an ascending range|not a valid range|is negative|^cooldown_seconds='soon'",
    ):
        AdaptiveScaler(**options)
