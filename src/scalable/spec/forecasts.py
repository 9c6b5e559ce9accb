"""What is predicted of calls that have not run yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Where a forecast comes from: earlier runs, the manifest's expectations, or nothing but a guess.
ForecastSource = Literal["history", "manifest", "guess"]


@dataclass(frozen=True)
class Forecast:
    """What one kind of call will take.

    Attributes
    ----------
    mean_s, q50_s, q80_s, q95_s
        Running time of one call in seconds: its mean and quantiles.
    memory
        95 % quantile of the peak memory of one call in bytes, or None where it is not known.
    samples
        Calls that it rests on.
    source
        Where it comes from.
    durations_s
        Some of the running times that it rests on, in seconds, for drawing from; empty where there
        are none.
    """

    mean_s: float
    q50_s: float
    q80_s: float
    q95_s: float
    memory: int | None = None
    samples: int = 0
    source: ForecastSource = "guess"
    durations_s: Sequence[float] = ()

    @classmethod
    def exactly(cls, duration_s: float, memory: int | None = None) -> Forecast:
        """A forecast that rests on the manifest's word alone."""
        return cls(duration_s, duration_s, duration_s, duration_s, memory, source="manifest")
