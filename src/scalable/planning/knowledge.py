"""Values from which a plan is made, besides the manifest: measurements and prices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalable.planning.variation import RunSpread
from scalable.spec import Forecast, Rate, Starting, TaskSpec


@dataclass(frozen=True)
class PastPrediction:
    """Predicted and actual length of an earlier run.

    Attributes
    ----------
    predicted_s
        Length that the plan predicted, in seconds.
    actual_s
        Seconds from the request of the first worker to the end of the last call.
    overhead
        Factor (see :func:`.uncertainty.overhead`) by which the prediction was already multiplied.
    """

    predicted_s: float
    actual_s: float
    overhead: float = 1.0

    @property
    def ratio(self) -> float:
        """Actual length / predicted length, where the prediction does not include its overhead."""
        return self.actual_s * self.overhead / self.predicted_s


@dataclass(frozen=True)
class Prices:
    """Prices of workers.

    Attributes
    ----------
    hourly_by_tag
        Tag -> price of one worker for one hour.
    currency, source, as_of, rates, always, notes
        Same as in :class:`scalable.spec.CostEstimate`.
    """

    hourly_by_tag: Mapping[str, float]
    currency: str = "USD"
    source: str = ""
    as_of: str | None = None
    rates: Mapping[str, Rate] = field(default_factory=dict)
    always: Mapping[str, Rate] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knowledge:
    """Measurements of earlier runs, and prices of the provider.

    Attributes
    ----------
    forecasts
        Task -> forecast of one call. For tasks without a forecast the manifest's values are used.
    calls
        Task -> number of calls in earlier runs.
    busiest
        Tag -> greatest number of calls that one of the latest complete runs sent to the pool.
    unlisted
        Tasks of earlier runs that the manifest does not name.
    startup_s
        Tag -> seconds from the request of a worker until it connects.
    startups_s
        Tag -> all measured values of ``startup_s``.
    run_spread
        Variation of running times from run to run.
    overlaps
        (earlier task, later task) -> probability that calls of the later task start before all
        calls of the earlier one have ended, if an earlier run shows something of it.
    past_predictions
        Predicted and actual lengths of earlier runs.
    ran_here
        Whether a run of the target is known.
    prices
        Prices of workers; None if no price is known.
    counts_startup
        Whether the start-up time of workers matters. If it matters but is not measured, the plan
        says that its prediction does not include the start-up time.
    starting
        Assumed time and billing of the start of a worker; None if nothing is known of them.
    today
        Present day, against which the age of prices is judged; None not to judge it.
    """

    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    busiest: Mapping[str, int] = field(default_factory=dict)
    unlisted: Sequence[TaskSpec] = ()
    startup_s: Mapping[str, float] = field(default_factory=dict)
    startups_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    run_spread: RunSpread = field(default_factory=RunSpread)
    overlaps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    past_predictions: Sequence[PastPrediction] = ()
    ran_here: bool = False
    prices: Prices | None = None
    counts_startup: bool = True
    starting: Starting | None = None
    today: dt.date | None = None

    def startup_of(self, tag: str) -> float | None:
        """Return the seconds that a start takes: measured, else assumed; None if not known.

        Starts are assumed only where each of their seconds has a price that the provider told.
        """
        if tag in self.startup_s:
            return self.startup_s[tag]
        if self.prices is None or tag not in self.prices.rates or self.starting is None:
            return None
        return self.starting.startup_s
