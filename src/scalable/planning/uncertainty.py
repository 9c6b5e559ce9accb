"""Confidence and intervals of predictions, from forecasts and from earlier runs. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scalable.planning.knowledge import PastPrediction
from scalable.planning.work import ExpectedTasks
from scalable.quantiles import quantile

#: A prediction counts as correct if actual value / predicted value is in this range.
BAND = (0.8, 1.25)
#: Quantiles that bound the interval of a prediction.
INTERVAL = (0.1, 0.9)
#: Minimum number of past predictions before their overhead is included in new predictions.
PREDICTIONS_FOR_OVERHEAD = 3
#: Minimum number of past predictions before intervals are computed from them.
PREDICTIONS_FOR_INTERVAL = 10
#: Weight of the simulated runs, as a number of past predictions.
WORTH_OF_DRAWS = 2
#: Weight of a duration in the manifest or from other targets, as a number of samples, and number of
#: samples with which the weight of the measurements is 0.5 (see :func:`evidence_of`).
WORTH_OF_MANIFEST, HALF_CERTAIN = 1, 5


def overhead(past_predictions: Sequence[PastPrediction]) -> float:
    """Return the median of actual / predicted duration, or 1 with fewer than three runs."""
    if len(past_predictions) < PREDICTIONS_FOR_OVERHEAD:
        return 1.0
    return median(past.ratio for past in past_predictions)


def confidence(
    past_predictions: Sequence[PastPrediction],
    draws: Sequence[float],
    predicted_s: float,
) -> float:
    """Return the probability that a run takes 0.8 to 1.25 times as long as predicted.
    It is the share of correct past predictions, estimated with a beta distribution. The prior mean
    is the share of ``draws`` in that range, or 0.5 without draws. The upper limit is the
    rule of succession for only correct predictions.
    """
    low, high = BAND
    inside = sum(low * predicted_s <= draw <= high * predicted_s for draw in draws)
    held = 0
    for position, past in enumerate(past_predictions):
        # The overhead of all others is applied to judge one past prediction.
        others = [*past_predictions[:position], *past_predictions[position + 1 :]]
        held += low <= past.ratio / overhead(others) <= high
    share = inside / len(draws) if draws else 0.5
    observed = WORTH_OF_DRAWS + len(past_predictions)
    return min((WORTH_OF_DRAWS * share + held) / observed, (observed + 1) / (observed + 2))


def evidence_of(calls: Sequence[ExpectedTasks]) -> float:
    """Return the mean weight of measurements, n / (n + 5) for n samples of a name, by work."""
    total = found = 0.0
    for c in calls:
        work = c.count * c.forecast.mean_s
        samples = c.forecast.samples if c.measured else WORTH_OF_MANIFEST
        total += work
        found += 0.0 if c.guessed else work * samples / (samples + HALF_CERTAIN)
    return found / total if total else 0.0


def interval(
    past_predictions: Sequence[PastPrediction], draws: Sequence[float], predicted: float
) -> tuple[float, float]:
    """Return the 80 % interval of the actual value, widened to include the prediction."""
    values = sorted(draws)
    if len(past_predictions) >= PREDICTIONS_FOR_INTERVAL:
        usual = overhead(past_predictions)
        values = sorted(predicted * past.ratio / usual for past in past_predictions)
    if not values:
        return predicted, predicted
    low, high = (quantile(values, q) for q in INTERVAL)
    return min(low, predicted), max(high, predicted)
