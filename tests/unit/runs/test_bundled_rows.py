"""Rows of bundles, read as the tasks that they tell of."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.quantiles import quantile
from scalable.runs.calls import RecordedTasks, bundled

SHARES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)


def row(lengths, failed=0):
    ordered = sorted(lengths)
    told = {
        "count": len(ordered),
        "failed": failed,
        "total_s": sum(ordered),
        "quantiles_s": {f"{q:g}": quantile(ordered, q) for q in SHARES} if ordered else {},
    }
    return {"task_id": "b", "task_name": "f", "state": "succeeded", "calls": told}


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=300))
def test_lengths_keep_their_number_total_and_middle(lengths):
    found = bundled(row(lengths))
    assert found.calls == len(lengths)
    assert list(found.durations_s) == sorted(found.durations_s)
    if sum(lengths) > 1e-6:
        assert sum(found.durations_s) == pytest.approx(sum(lengths))


def test_equal_lengths_are_equal():
    assert list(bundled(row([2.0] * 7)).durations_s) == pytest.approx([2.0] * 7)


@pytest.mark.parametrize("calls", [
    None,
    3,
    {},
    {"count": -1, "failed": 0, "total_s": 0, "quantiles_s": {}},
    {"count": 3, "failed": 0, "total_s": 1, "quantiles_s": {}},
    {"count": 3, "failed": 9, "total_s": 1, "quantiles_s": {"0.5": 1}},
    {"count": 3, "failed": 0, "total_s": 1, "quantiles_s": {"half": 1}},
    {"count": "x", "failed": 0, "total_s": 1, "quantiles_s": []},
])  # fmt: skip
def test_rows_without_valid_bundled_calls_give_none(calls):
    assert bundled({"calls": calls}) is None


def test_a_bundle_counts_as_its_calls():
    other = {"task_id": "c", "state": "succeeded", "duration_s": 1.0}
    calls = RecordedTasks([row([1.0, 2.0, 3.0], failed=1), other])
    assert calls.succeeded() == {(None, "f"): array("i", [0]), (None, "c"): array("i", [1])}
    assert [len(calls.durations(call)) for call in range(2)] == [2, 1]
    assert calls.bundles.keys() == {0}
