"""Prediction of the time when all known tasks end."""

import random

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.remaining import RemainingCalls, RemainingPool, predict_rest

calls = st.builds(
    RemainingCalls,
    name=st.just("fit"),
    count=st.integers(1, 100_000),
    mean_s=st.floats(0.001, 1e4),
    spread=st.none() | st.floats(0, 4),
    measured=st.integers(0, 1000),
    elapsed_s=st.floats(0, 1e4),
)
pools = st.lists(
    st.builds(
        RemainingPool,
        tag=st.sampled_from("ab"),
        slots=st.integers(1, 5000),
        calls=st.lists(calls, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@given(pools)
def test_prediction_lies_within_its_interval(pools):
    rest = predict_rest(pools)
    assert 0 < rest.low <= rest.seconds <= rest.high


@given(pools, st.integers(1, 100))
def test_more_slots_never_take_longer(pools, more):
    wider = [RemainingPool(p.tag, p.slots + more, p.calls) for p in pools]
    assert predict_rest(wider).seconds <= predict_rest(pools).seconds * (1 + 1e-9)


def test_nothing_unfinished_ends_now():
    assert predict_rest([]).seconds == 0.0


def test_tasks_that_took_no_measurable_time_have_a_prediction():
    rest = predict_rest([RemainingPool("a", 1, [RemainingCalls("fit", 3, 0.0, measured=2)])])
    assert rest.seconds == 0.0


def test_unknown_running_times_and_missing_workers_are_named():
    unknown = RemainingPool("a", 1, [RemainingCalls("fit", 3, None)])
    assert predict_rest([unknown]).reason == "no task of 'fit' has finished yet"
    nobody = RemainingPool("a", 0, [RemainingCalls("fit", 3, 1.0)])
    assert predict_rest([nobody]).reason == "pool 'a' has no workers"


def test_a_task_of_which_nothing_is_known_takes_as_long_as_others_with_a_wider_interval():
    fit, small = RemainingCalls("fit", 40, 2.0, 0.3, 30), RemainingCalls("small", 1, None)
    alone = predict_rest([RemainingPool("a", 4, [fit])])
    both = predict_rest([RemainingPool("a", 4, [fit, small])])
    assert both.low < both.seconds < both.high
    assert both.seconds >= alone.seconds
    assert both.high / both.low > alone.high / alone.low
    assert "no task of 'small' has finished yet: assumed to take as long as others" in both.reason
    # What has ended tells about what has not, also from another pool.
    ended = RemainingCalls("fit", 0, 2.0, 0.3, 30)
    pools = [RemainingPool("b", 0, [ended]), RemainingPool("a", 1, [small])]
    rest = predict_rest(pools)
    assert 1.0 < rest.seconds < 4.0
    assert rest.high / rest.low > 10


@given(pools, st.integers(1, 100))
def test_a_small_task_of_which_nothing_is_known_never_hides_the_prediction(pools, count):
    unknown = RemainingCalls("new", count, None)
    more = [RemainingPool(p.tag, p.slots, [*p.calls, unknown]) for p in pools]
    rest = predict_rest(more)
    assert 0 < rest.low <= rest.seconds <= rest.high


def test_four_of_five_drawn_ends_lie_within_the_interval():
    source = random.Random(7)
    inside = 0
    for _ in range(400):
        mu, spread, slots = source.uniform(-1, 3), source.uniform(0.2, 1.0), source.randint(1, 20)
        measured = [source.lognormvariate(mu, spread) for _ in range(30)]
        rest = [source.lognormvariate(mu, spread) for _ in range(source.randint(slots, 400))]
        known = RemainingCalls("fit", len(rest), sum(measured) / 30, spread, 30)
        predicted = predict_rest([RemainingPool("a", slots, [known])])
        free = [0.0] * slots
        for seconds in rest:
            free.sort()
            free[0] += seconds
        inside += predicted.low <= max(free) <= predicted.high
    assert inside >= 0.7 * 400


@given(st.integers(1, 1000), st.integers(1, 50), st.floats(0.0, 1e5), st.floats(1e-6, 1e3))
def test_unknown_tasks_take_at_least_as_long_again_as_they_have_run(count, slots, ran_s, quick_s):
    running = min(count, slots)
    unknown = RemainingCalls("grow", count, None, elapsed_s=running * ran_s)
    quick = RemainingCalls("quick", 0, quick_s, 0.1, 5)
    rest = predict_rest([RemainingPool("a", slots, [quick, unknown])])
    assert rest.seconds >= 0.3 * max(1, count // slots) * ran_s
    assert rest.low <= rest.seconds <= rest.high
