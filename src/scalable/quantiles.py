"""Sums and quantiles of measured values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sum(NamedTuple):
    """One measurement of several tasks, added up."""

    #: Number of tasks that were measured.
    tasks: int = 0
    total: float = 0.0

    @classmethod
    def of(cls, values: Collection[float]) -> Sum:
        return cls(len(values), sum(values))

    def __add__(self, other: Sum) -> Sum:  # type: ignore[override]
        return Sum(self.tasks + other.tasks, self.total + other.total)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles, maximum, mean and total of measurements, in the unit of the values."""

    q50: float
    q80: float
    q95: float
    max: float
    mean: float
    total: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles | None:
        """Return the quantiles of unsorted values, or None without values."""
        if not values:
            return None
        ordered = sorted(values)
        total = sum(ordered)
        q50, q80, q95 = (quantile(ordered, q) for q in (0.5, 0.8, 0.95))
        return cls(q50, q80, q95, ordered[-1], total / len(ordered), total)


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile of sorted values, interpolated linearly as by NumPy's default (type 7)."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Rounding may make the sum slightly larger than the upper neighbour.
    return min(low + (high - low) * (position - below), high)
