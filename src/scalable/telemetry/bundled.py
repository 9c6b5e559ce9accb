"""Rows of bundles in a record.

A bundle is a batch of calls that is sent as one Dask task. One row contains the number of its calls
and the quantiles of their running times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Bundled(NamedTuple):
    """Calls of one bundle, as its row describes them.

    Attributes
    ----------
    calls, failed
        Number of calls, and number of failed calls.
    durations_s
        Running times that are computed from the quantiles, in ascending order. Only their sum is
        measured.
    cancelled
        Number of calls that were cancelled with the bundle, after it had begun; not in ``calls``.
        Nor are calls that did not run, because their results were found.
    """

    calls: int
    failed: int
    durations_s: Sequence[float]
    cancelled: int = 0


def bundled(row: Mapping[str, Any]) -> Bundled | None:
    """Return the calls of a bundle from its row, or None if the row does not describe a bundle.

    Parameters
    ----------
    row
        Row of tasks.jsonl.
    """
    told = row.get("calls")
    if not isinstance(told, Mapping):
        return None
    try:
        count, failed, total = int(told["count"]), int(told["failed"]), float(told["total_s"])
        cancelled = max(0, int(told.get("cancelled", 0)))
        known = sorted((float(q), float(value)) for q, value in told["quantiles_s"].items())
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    if count < 0 or not 0 <= failed <= count or (count and not known):
        return None
    lengths = [_between(known, (i + 0.5) / count) for i in range(count)]
    scale = total / sum(lengths) if sum(lengths) > 0 else 1.0
    return Bundled(count, failed, [length * scale for length in lengths], cancelled)


def _between(known: Sequence[tuple[float, float]], share: float) -> float:
    """Return the quantile ``share`` by linear interpolation between known quantiles."""
    below = known[0]
    for above in known:
        if above[0] >= share:
            width = above[0] - below[0]
            part = (share - below[0]) / width if width else 0.0
            return below[1] + part * (above[1] - below[1])
        below = above
    return below[1]


def each_call(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows; replace each last row of a bundle by one row per successful call."""
    for row in rows:
        calls = bundled(row)
        if calls is None:
            yield row
            continue
        for duration_s in calls.durations_s[: calls.calls - calls.failed]:
            yield {**row, "duration_s": duration_s, "calls": None}
