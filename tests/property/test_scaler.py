"""What holds for every load that an AdaptiveScaler may be shown."""

from hypothesis import given
from hypothesis import strategies as st

from scalable import AdaptiveScaler

TAGS = ("a", "b", "c")
durations = st.none() | st.floats(0, 1e5)
tasks = st.lists(
    st.builds(lambda tag, d: {"tag": tag, "duration": d}, st.sampled_from(TAGS), durations),
    max_size=40,
)
counts = st.dictionaries(st.sampled_from(TAGS), st.integers(0, 60))
ended = st.lists(
    st.builds(lambda t, d: {"tag": t, "duration_s": d}, st.sampled_from(TAGS), st.floats(0, 1e4)),
    max_size=10,
)
thresholds = st.tuples(st.floats(0, 5), st.floats(0.01, 5)).map(lambda p: (p[0], p[0] + p[1]))


@st.composite
def scalers(draw, cooldowns=(0,)):
    bounds = draw(
        st.dictionaries(st.sampled_from(TAGS), st.tuples(st.integers(0, 9), st.integers(0, 30)))
    )
    down, up = draw(thresholds)
    return AdaptiveScaler(
        {tag: low for tag, (low, _) in bounds.items()},
        {tag: low + more for tag, (low, more) in bounds.items()},
        scale_up_threshold=up,
        scale_down_threshold=down,
        cooldown_seconds=draw(st.sampled_from(cooldowns)),
    )


def applied(decision, active):
    after = dict(active)
    for tag, count in decision.workers_to_add.items():
        after[tag] = after.get(tag, 0) + count
    for tag, count in decision.workers_to_remove.items():
        after[tag] -= count
    return after


@given(scalers(), tasks, counts, ended)
def test_the_same_load_again_changes_nothing(scaler, pending, active, completions):
    decision = scaler.evaluate(pending, active, completions)
    after = applied(decision, active)
    again = scaler.evaluate(pending, after, completions)
    assert not again.has_changes, (decision, again)


def in_range(decision):
    seconds, confidence = decision.predicted_completion_time, decision.confidence
    return 0 <= confidence <= 1 and (seconds is None or seconds >= 0)


class Counts:
    """Workers of a caller who may not know the counts of some tags: these have what was decided."""

    def __init__(self):
        self._named, self._decided = set(), {}

    def after(self, decision, active):
        counts = applied(decision, {**self._decided, **active})
        self._named |= active.keys()
        self._decided = {tag: n for tag, n in counts.items() if tag not in self._named}
        return counts


@given(scalers(), st.lists(st.tuples(tasks, counts), min_size=1, max_size=4))
def test_without_cooldown_bounds_always_hold_and_nobody_goes_below_zero(scaler, looks):
    counts = Counts()
    for pending, active in looks:
        decision = scaler.evaluate(pending, active)
        for tag, count in counts.after(decision, active).items():
            low, high = scaler.min_workers.get(tag, 0), scaler.max_workers.get(tag, 10**9)
            assert low <= count <= high
        assert in_range(decision)
        assert pending or decision.predicted_completion_time == 0


@given(
    scalers(cooldowns=(60,)),
    st.lists(st.tuples(st.integers(0, 70), tasks, counts, ended), min_size=2, max_size=8),
)
def test_two_changes_of_a_tag_are_a_cooldown_apart(scaler, looks):
    now, changed, counts = 0.0, {}, Counts()
    scaler._clock = lambda: now
    for pause, pending, active, completions in looks:
        now += pause
        decision = scaler.evaluate(pending, active, completions)
        assert in_range(decision)
        for tag, count in counts.after(decision, active).items():
            assert count >= 0
            if tag in decision.changes:
                assert now - changed.get(tag, -60.0) >= 60
                changed[tag] = now
                low, high = scaler.min_workers.get(tag, 0), scaler.max_workers.get(tag, 10**9)
                assert low <= count <= high


@given(scalers(cooldowns=(60,)), st.lists(st.tuples(st.integers(0, 70), tasks), max_size=8))
def test_applied_decisions_stay_within_the_bounds_in_a_cooldown(scaler, looks):
    now, active = 0.0, {}
    scaler._clock = lambda: now
    for pause, pending in looks:
        now += pause
        active = applied(scaler.evaluate(pending, active), active)
        for tag, count in active.items():
            assert scaler.min_workers.get(tag, 0) <= count <= scaler.max_workers.get(tag, 10**9)


@given(scalers(), tasks, counts)
def test_a_time_is_predicted_as_soon_as_calls_run(scaler, pending, active):
    decision = scaler.evaluate(pending, active)
    after = applied(decision, active)
    tags = {task["tag"] for task in pending}
    if all(active.get(tag) and after.get(tag) for tag in tags):
        assert decision.predicted_completion_time is not None
        assert decision.confidence > 0
