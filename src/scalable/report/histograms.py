"""Distributions of running time, time in the queue and memory by task name. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.quantiles import quantile
from scalable.report.spans import number, text
from scalable.telemetry import each_call

#: Number of bars, and maximum number of task names with a distribution.
BARS, NAMES = 24, 20
#: Bars are logarithmic if the 95 % quantile is at least this multiple of the 5 % quantile.
_WIDE = 20.0


@dataclass(frozen=True)
class Histogram:
    """Numbers of values in :data:`BARS` equal intervals, on a logarithmic or a linear axis.

    Attributes
    ----------
    low, high
        Smallest and largest value, in the unit of the values.
    median, q95
        Quantiles.
    counts
        Number of values in each interval.
    logarithmic
        Whether the intervals are equal on a logarithmic axis.
    """

    low: float
    high: float
    median: float
    q95: float
    counts: tuple[int, ...]
    logarithmic: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> Histogram | None:
        """Return the distribution of values in any order, or None without values."""
        ordered = sorted(values)
        if not ordered:
            return None
        low, high = ordered[0], ordered[-1]
        floor = quantile(ordered, 0.05)
        wide = floor > 0 and quantile(ordered, 0.95) / floor >= _WIDE and low > 0
        counts = [0] * BARS
        if high <= low:
            counts[BARS // 2] = len(ordered)
        else:
            base = math.log(low) if wide else low
            span = (math.log(high) if wide else high) - base
            for value in ordered:
                place = ((math.log(value) if wide else value) - base) / span
                counts[min(BARS - 1, int(place * BARS))] += 1
        return cls(low, high, quantile(ordered, 0.5), quantile(ordered, 0.95), tuple(counts), wide)

    def place(self, value: float) -> float:
        """Return where a value is on the axis: 0 for ``low``, 1 for ``high``."""
        if self.high <= self.low:
            return 0.5
        if not self.logarithmic:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class TaskDistributions:
    """Distributions of the calls of one task name; None where nothing was measured.

    Attributes
    ----------
    name, tags
        Task name, and the tags of its calls.
    duration_s, queued_s
        Running times and times in the queue, in seconds.
    memory
        Peak memory in bytes.
    """

    name: str
    tags: tuple[str, ...]
    duration_s: Histogram | None
    queued_s: Histogram | None
    memory: Histogram | None


def distributions(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[TaskDistributions, ...]:
    """Return the distributions of the first :data:`NAMES` of some task names.

    Parameters
    ----------
    rows
        Rows of tasks.jsonl.
    names
        Task names, the most important first.
    """
    keys = ("duration_s", "queued_s", "peak_memory")
    values: dict[str, tuple[list[float], ...]] = {name: ([], [], []) for name in names[:NAMES]}
    tags: dict[str, set[str]] = {name: set() for name in values}
    ended = (row for row in rows if row.get("state") in ("succeeded", "failed"))
    for row in ended:
        name = text(row.get("task_name")) or text(row.get("task_id"))
        if name not in values:
            continue
        tags[name].add(text(row.get("tag")))
        lengths, *others = values[name]
        # One row of a bundle stands for many calls.
        each = (row,) if row.get("calls") is None else each_call([row])
        lengths += [v for call in each if (v := number(call.get(keys[0]))) is not None]
        for key, numbers in zip(keys[1:], others, strict=True):
            if (value := number(row.get(key))) is not None:
                numbers.append(value)
    return tuple(
        TaskDistributions(
            name, tuple(sorted(tags[name] - {""})), *(Histogram.of(part) for part in parts)
        )
        for name, parts in values.items()
    )
