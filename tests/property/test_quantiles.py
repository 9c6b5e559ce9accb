"""Quantiles and summaries hold for any values."""

import random
import statistics
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scalable.quantiles import Quantiles, quantile
from scalable.runs.reading import RunRecord
from scalable.runs.summary import summarize

VALUES = st.lists(st.floats(0, 1e12), min_size=1, max_size=50)
SHARE = st.floats(0, 1)


@given(VALUES, SHARE, SHARE)
def test_quantiles_rise_from_the_smallest_to_the_largest(values, one, other):
    ordered = sorted(values)
    low, high = sorted((one, other))
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]
    # Interpolation on either side of a value may differ by its rounding.
    slack = 1e-9 * ordered[-1]
    assert ordered[0] <= quantile(ordered, low) <= quantile(ordered, high) + slack
    assert quantile(ordered, high) <= ordered[-1]


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_quantiles_are_those_of_the_standard_library(values):
    expected = statistics.quantiles(values, n=20, method="inclusive")
    ordered = sorted(values)
    for step, value in enumerate(expected, start=1):
        assert abs(quantile(ordered, step / 20) - value) <= 1e-6 * max(1.0, value)


@given(VALUES, st.randoms(use_true_random=False))
def test_spreads_do_not_depend_on_the_order(values, shuffler: random.Random):
    mixed = list(values)
    shuffler.shuffle(mixed)
    assert Quantiles.of(mixed) == Quantiles.of(values)


@given(VALUES)
def test_quantiles_are_consistent(values):
    spread = Quantiles.of(values)
    assert spread is not None
    assert spread.q50 <= spread.q80 * (1 + 1e-9)
    assert spread.q80 <= spread.q95 * (1 + 1e-9)
    assert spread.q95 <= spread.max == max(values)
    assert abs(spread.mean * len(values) - spread.total) <= 1e-9 * spread.total + 1e-300


def test_no_values_have_no_spread():
    assert Quantiles.of([]) is None


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "event": st.sampled_from(["requested", "started", "removed", "other"]),
            "worker": st.sampled_from(["w0", "w1", "w2"]),
            "tag": st.sampled_from(["a", "b", None]),
            "reason": st.sampled_from([None, "closed", "lost", "scale-down"]),
            "timestamp": st.floats(0, 1e9),
        }
    ),
    max_size=30,
)
STATES = st.lists(
    st.tuples(
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["submitted", "running", "succeeded", "failed", "cancelled"]),
    ),
    max_size=30,
)


@given(EVENTS, STATES)
def test_counts_add_up(events, states):
    tasks = [{"task_id": i, "task_name": f"n-{i}", "state": s} for i, s in states]
    record = RunRecord(path=Path("r"), run={}, status="running", workers=events, tasks=tasks)
    summary = summarize(record)
    for pool in summary.workers.values():
        assert pool.started == pool.removed + pool.final
        assert 0 <= pool.lost <= pool.removed
    assert sum(pool.final for pool in summary.workers.values()) >= 0
    assert sum(summary.tasks.values()) == len({i for i, _ in states})
    assert sum(
        name.task.counts.failed for name in summary.task_names.values()
    ) == summary.tasks.get("failed", 0)
