"""Beliefs about the lengths of calls, and the outlooks made from them."""

import math

import pytest

from scalable.scaling.beliefs import Belief, Beliefs
from scalable.scaling.outlook import likeliest, outlooks
from scalable.scaling.task_model import Expectation, Kind, Prior, Sample, TaskModel

A, B, NEW = Kind("run", "a"), Kind("run", "b"), Kind("run", "new")


def believed(model=None, running=None, startup_s=1.0, kind=NEW):
    return Beliefs(model or TaskModel(), running or {}, startup_s).of(kind)


def median_s(belief):
    return math.exp(belief.log_s)


def test_unknown_calls_are_longer_where_workers_take_long_to_start():
    quick, slow = believed(startup_s=1.0), believed(startup_s=600.0)
    assert median_s(quick) == pytest.approx(Prior().single_s)
    assert median_s(slow) == pytest.approx(Prior().single_s * 600 ** Prior().growth)
    assert quick.spread == slow.spread == pytest.approx(math.hypot(1.5, 1.5))


def test_unknown_tasks_with_many_calls_have_longer_ones():
    def median_of(count, model=None):
        beliefs = Beliefs(model or TaskModel(), {}, 1.0, {NEW: count})
        return median_s(beliefs.of(NEW))

    assert median_of(100) == pytest.approx(median_of(1) * 100 ** Prior().parallel)
    # Short single calls tell little about tasks with many calls.
    single = TaskModel()
    for place in range(5):
        single.observe(Sample(Kind("run", f"t{place}"), 1.0))
    assert median_of(200, single) > 4 * median_of(1, single)


def test_two_estimates_are_weighted_by_their_precision():
    both = Belief(0.0, 1.0).combined(3.0, 0.5)
    assert both.log_s == pytest.approx((0.0 * 1 + 3.0 * 4) / 5)
    assert both.spread == pytest.approx(math.sqrt(1 / 5))


def test_ended_calls_narrow_the_belief_about_their_kind():
    model = TaskModel()
    spreads = []
    for _ in range(30):
        model.observe(Sample(A, 100.0))
        spreads.append(believed(model, kind=A).spread)
    assert spreads == sorted(spreads, reverse=True)
    assert median_s(believed(model, kind=A)) == pytest.approx(100.0, rel=0.1)


def test_the_tasks_of_a_pool_tell_about_its_other_tasks():
    model = TaskModel()
    for place in range(10):
        model.observe(Sample(Kind("run", f"t{place}"), 500.0))
    assert 200 < median_s(believed(model)) < 520
    assert believed(model).spread < believed().spread
    assert median_s(believed(model, kind=Kind("other", "new"))) == pytest.approx(Prior().single_s)


def test_running_calls_are_at_least_as_long_as_they_have_run():
    medians = [median_s(believed(running={NEW: [e] * 5})) for e in (0.0, 1.0, 10.0, 100.0, 1000.0)]
    assert medians == sorted(medians)
    assert medians[-1] > 700
    one, many = (median_s(believed(running={NEW: [100.0] * n})) for n in (1, 20))
    assert one < many


def test_a_long_unknown_call_tells_about_the_other_unknown_tasks():
    assert median_s(believed(running={A: [2000.0]}, kind=B)) > 2 * median_s(believed(kind=B))


def test_the_manifest_and_the_sizes_of_inputs_count():
    model = TaskModel({("run", "a"): Expectation(60.0)})
    stated = believed(model, kind=A)
    assert (median_s(stated), stated.spread) == (pytest.approx(60.0), Prior().stated_spread)
    sized = believed(model, kind=Kind("run", "a", 7))
    assert median_s(sized) == pytest.approx(60.0)
    assert sized.spread > stated.spread


def test_earlier_runs_leave_a_doubt():
    model = TaskModel(history=[Sample(A, 50.0)] * 1000)
    belief = believed(model, kind=A)
    assert median_s(belief) == pytest.approx(50.0, rel=0.05)
    assert belief.spread == pytest.approx(0.2, rel=0.05)


def test_outlooks_are_one_for_what_is_known_and_three_for_what_is_not():
    model = TaskModel()
    for _ in range(100):
        model.observe(Sample(A, 5.0))
    (known,) = outlooks(Beliefs(model, {}, 1.0), [A])
    assert known.lengths.mean_s(A) == pytest.approx(5.0, rel=0.05)
    low, middle, high = outlooks(Beliefs(model, {}, 1.0), [A, NEW])
    assert sum(o.weight for o in (low, middle, high)) == pytest.approx(1.0)
    assert likeliest([low, middle, high]) is middle
    means = [o.lengths.mean_s(NEW) for o in (low, middle, high)]
    assert means == sorted(means)
    assert means[2] / means[0] > 20


def test_the_rest_of_a_running_call_depends_on_the_outlook():
    low, _, high = outlooks(Beliefs(TaskModel(), {}, 1.0), [NEW])
    assert low.lengths.residual_s(NEW, 1.0) < high.lengths.residual_s(NEW, 1.0)
    model = TaskModel()
    for seconds in range(1, 11):
        model.observe(Sample(A, float(seconds)))
    (only, *_) = outlooks(Beliefs(model, {}, 1.0), [A])
    assert only.lengths.residual_s(A, 4.5) == pytest.approx(7.5 - 4.5)
