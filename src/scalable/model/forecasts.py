"""Predictions for tasks that have not run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: Source of a forecast: earlier runs, the expectations of the manifest, or a guess.
ForecastSource = Literal["history", "manifest", "guess"]


@dataclass(frozen=True)
class Forecast:
    """Predicted time and memory of one kind of task."""

    #: Duration of one task: its mean and quantiles.
    mean_s: float
    q50_s: float
    q80_s: float
    q95_s: float
    #: 95 % quantile of the peak memory of one task in bytes, or None if unknown.
    memory: int | None = None
    #: Number of measured tasks behind the forecast.
    samples: int = 0
    source: ForecastSource = "guess"
    #: Sample of the measured durations.
    durations_s: Sequence[float] = ()
    #: Number of measured tasks by target.
    measured_on: Mapping[str, int] = field(default_factory=dict)
    #: True if all measured tasks ran on other targets.
    elsewhere: bool = False

    @classmethod
    def exactly(cls, duration_s: float, memory: int | None = None) -> Forecast:
        """Return a forecast of exactly these values, with the manifest as its source."""
        return cls(duration_s, duration_s, duration_s, duration_s, memory, source="manifest")
