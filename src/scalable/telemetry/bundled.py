"""Rows of bundles in a record. A bundle is a batch of tasks sent as one Dask task.
Its row has the number of its tasks and the quantiles of their running times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Bundled(NamedTuple):
    """Tasks of one bundle, as its row describes them.
    Cache hits are in neither count.
    """

    calls: int
    failed: int
    #: Running times derived from the quantiles, ascending. Only their sum is measured.
    durations_s: Sequence[float]
    #: Tasks cancelled with the bundle after it had started, not in ``calls``.
    cancelled: int = 0


def bundled(row: Mapping[str, Any]) -> Bundled | None:
    """Return the tasks of a bundle from its row, or None if the row is not a bundle's."""
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
    """Yield the rows, replacing each last row of a bundle by one per successful task."""
    for row in rows:
        calls = bundled(row)
        if calls is None:
            yield row
            continue
        for duration_s in calls.durations_s[: calls.calls - calls.failed]:
            yield {**row, "duration_s": duration_s, "calls": None}
