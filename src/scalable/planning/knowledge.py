"""Inputs of a plan other than the manifest: measurements and prices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalable.model import Forecast, Rate, Starting, TaskSpec
from scalable.planning.variation import RunSpread


@dataclass(frozen=True)
class PastPrediction:
    """Predicted and actual duration of an earlier run."""

    predicted_s: float
    #: Seconds from the request of the first worker to the end of the last task.
    actual_s: float
    #: Factor (see :func:`.uncertainty.overhead`) that the prediction includes.
    overhead: float = 1.0

    @property
    def ratio(self) -> float:
        """Actual duration divided by the predicted duration without overhead."""
        return self.actual_s * self.overhead / self.predicted_s


@dataclass(frozen=True)
class Prices:
    """Prices of workers, with details as in :class:`scalable.model.CostEstimate`."""

    #: Price of one worker for one hour, by tag.
    hourly_by_tag: Mapping[str, float]
    currency: str = "USD"
    source: str = ""
    as_of: str | None = None
    rates: Mapping[str, Rate] = field(default_factory=dict)
    always: Mapping[str, Rate] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knowledge:
    """Measurements of earlier runs, and prices of the provider."""

    #: Forecasts by task name. The manifest's values replace missing ones.
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    #: Number of tasks in earlier runs, by task name.
    calls: Mapping[str, int] = field(default_factory=dict)
    #: Largest number of tasks that one of the latest complete runs sent to a pool, by tag.
    busiest: Mapping[str, int] = field(default_factory=dict)
    #: Task names of earlier runs that are not in the manifest.
    unlisted: Sequence[TaskSpec] = ()
    #: Seconds from the request of a worker until it connects, by tag.
    startup_s: Mapping[str, float] = field(default_factory=dict)
    #: All measured values of ``startup_s``.
    startups_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: Variation of task durations from run to run.
    run_spread: RunSpread = field(default_factory=RunSpread)
    #: Probability that tasks of the second name start before all tasks of the first have
    #: finished. Pairs without a measurement are not included.
    overlaps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    past_predictions: Sequence[PastPrediction] = ()
    #: True if there is an earlier run of the target.
    ran_here: bool = False
    prices: Prices | None = None
    #: True if start-up time matters. A plan then reports if it is not measured and left out.
    counts_startup: bool = True
    #: Assumed time and billing of a worker's start.
    starting: Starting | None = None
    #: Day for which the age of prices is checked. None to skip the check.
    today: dt.date | None = None

    def startup_of(self, tag: str) -> float | None:
        """Return the seconds of a start, measured or assumed, or None if unknown."""
        if tag in self.startup_s:
            return self.startup_s[tag]
        # A start is assumed only if the provider gives the price of its seconds.
        if self.prices is None or tag not in self.prices.rates or self.starting is None:
            return None
        return self.starting.startup_s
