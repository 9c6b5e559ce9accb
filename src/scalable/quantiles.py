"""Quantiles of measured values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantiles:
    """Median, 95 % quantile, maximum and mean, in the unit of the values."""

    q50: float
    q95: float
    max: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles | None:
        """Return the quantiles of unsorted values, or None without values."""
        if not values:
            return None
        ordered = sorted(values)
        mean = sum(ordered) / len(ordered)
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.95), ordered[-1], mean)


@dataclass(frozen=True)
class Durations:
    """Quantiles, mean and total of running times, in seconds."""

    q50: float
    q80: float
    q95: float
    max: float
    mean: float
    total: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Durations | None:
        """Return the statistics of unsorted running times, or None without values."""
        if not values:
            return None
        ordered = sorted(values)
        total = sum(ordered)
        return cls(
            q50=quantile(ordered, 0.5),
            q80=quantile(ordered, 0.8),
            q95=quantile(ordered, 0.95),
            max=ordered[-1],
            mean=total / len(ordered),
            total=total,
        )


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile of sorted values, interpolated linearly as by NumPy's default (type 7)."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Rounding may make the sum slightly larger than the upper neighbour.
    return min(low + (high - low) * (position - below), high)
