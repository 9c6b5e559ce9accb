"""What is known beside the manifest when a plan is made. Values; who gathers them is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalable.spec import Forecast, TaskSpec


@dataclass(frozen=True)
class PastPrediction:
    """What a plan predicted of a run, and what became of it.

    Attributes
    ----------
    predicted_s
        Seconds that the plan said.
    actual_s
        Seconds until the last call ended, from asking for the first worker.
    overhead
        The factor that the prediction already contained for what earlier runs took longer.
    """

    predicted_s: float
    actual_s: float
    overhead: float = 1.0

    @property
    def ratio(self) -> float:
        """Actual over predicted, without the factor that the prediction contained."""
        return self.actual_s * self.overhead / self.predicted_s


@dataclass(frozen=True)
class Prices:
    """What one worker costs.

    Attributes
    ----------
    hourly_by_tag
        Tag -> price of one worker for one hour.
    currency, source, as_of
        As in :class:`scalable.spec.CostEstimate`.
    """

    hourly_by_tag: Mapping[str, float]
    currency: str = "USD"
    source: str = ""
    as_of: str | None = None


@dataclass(frozen=True)
class Knowledge:
    """What earlier runs and the provider say.

    Attributes
    ----------
    forecasts
        Task -> what one call of it takes; a task without one is planned by the manifest's word.
    calls
        Task -> calls that earlier runs made of it.
    unlisted
        Tasks that earlier runs made calls of and the manifest does not name.
    startup_s
        Tag -> seconds from asking for a worker until it connects.
    past_predictions
        What became of earlier predictions.
    prices
        None where no price is known.
    counts_startup
        Whether workers take long enough to start for a prediction to say that it leaves that out.
    """

    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unlisted: Sequence[TaskSpec] = ()
    startup_s: Mapping[str, float] = field(default_factory=dict)
    past_predictions: Sequence[PastPrediction] = ()
    prices: Prices | None = None
    counts_startup: bool = True
