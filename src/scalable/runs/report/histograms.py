"""Distributions of running time, queue time and memory by task name. Does no I/O."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.quantiles import quantile
from scalable.runs import each_call
from scalable.runs.report.spans import number, text

#: Number of bins, and maximum number of task names with a distribution.
BARS, NAMES = 24, 20
#: Bins are logarithmic if the 95 % quantile is at least this multiple of the 5 % quantile.
_WIDE = 20.0
_KEYS = ("duration_s", "queued_s", "peak_memory")


@dataclass(frozen=True)
class Histogram:
    """Numbers of values in :data:`BARS` equal intervals, on a logarithmic or a linear axis."""

    #: Smallest and largest value, in the unit of the values.
    low: float
    high: float
    median: float
    q95: float
    counts: tuple[int, ...]
    logarithmic: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> Histogram | None:
        """Return the distribution of unsorted values, or None without values."""
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
        """Return the position of a value on the axis, 0 for ``low`` and 1 for ``high``."""
        if self.high <= self.low:
            return 0.5
        if not self.logarithmic:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class TaskDistributions:
    """Distributions of values of one task name. None means not measured. Memory is in bytes."""

    name: str
    tags: tuple[str, ...]
    duration_s: Histogram | None
    queued_s: Histogram | None
    memory: Histogram | None


class TaskValues:
    """Measured values of tasks by name, collected from the rows of ``tasks.jsonl``."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[array[float], ...]] = {}
        self._tags: dict[str, set[str]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row.get("state") in ("succeeded", "failed"):
                self._add_ended(row)

    def _add_ended(self, row: Mapping[str, Any]) -> None:
        name = text(row.get("task_name")) or text(row.get("task_id"))
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = tuple(array("d") for _ in _KEYS)
            self._tags[name] = set()
        self._tags[name].add(text(row.get("tag")))
        # One row of a bundle stands for many tasks.
        each = (row,) if row.get("calls") is None else each_call([row])
        lengths = (number(call.get("duration_s")) for call in each)
        values[0].extend(length for length in lengths if length is not None)
        for key, numbers in zip(_KEYS[1:], values[1:], strict=True):
            if (value := number(row.get(key))) is not None:
                numbers.append(value)

    def distributions(self, names: Sequence[str]) -> tuple[TaskDistributions, ...]:
        """Return the distributions of the first :data:`NAMES` of the names."""
        nothing = tuple(array("d") for _ in _KEYS)
        return tuple(
            TaskDistributions(
                name,
                tuple(sorted(self._tags.get(name, set()) - {""})),
                *(Histogram.of(values) for values in self._values.get(name, nothing)),
            )
            for name in names[:NAMES]
        )
