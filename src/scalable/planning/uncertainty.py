"""Confidence and intervals of predictions, from forecasts and from earlier runs. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from scalable.planning.knowledge import PastPrediction
from scalable.planning.work import Calls
from scalable.quantiles import quantile

#: A prediction counts as correct if actual value / predicted value is in this range.
BAND = (0.8, 1.25)
#: Quantiles at the ends of the interval of a prediction.
INTERVAL = (0.1, 0.9)
#: Minimum number of past predictions before their overhead is included in new predictions.
PREDICTIONS_FOR_OVERHEAD = 3
#: Minimum number of past predictions before intervals are computed from them.
PREDICTIONS_FOR_INTERVAL = 10
#: Number of past predictions that the simulated runs are worth.
WORTH_OF_DRAWS = 2
#: Number of samples that a duration in the manifest is worth, and measurements on other targets;
#: and number of samples with which the weight of the measurements is 0.5 (see :func:`evidence_of`).
WORTH_OF_MANIFEST, HALF_CERTAIN = 1, 5


def overhead(past_predictions: Sequence[PastPrediction]) -> float:
    """Return the median of actual length / predicted length; 1 with fewer than three runs."""
    if len(past_predictions) < PREDICTIONS_FOR_OVERHEAD:
        return 1.0
    return median(past.ratio for past in past_predictions)


def confidence(
    past_predictions: Sequence[PastPrediction],
    draws: Sequence[float],
    predicted_s: float,
) -> float:
    """Return the probability that a run takes 0.8 to 1.25 times as long as predicted.

    The result is the share of correct past predictions, estimated with a beta distribution whose
    prior mean is the share of simulated runs in that range. To judge one past prediction, the
    overhead of all others is applied to it.

    Parameters
    ----------
    past_predictions
        Predicted and actual lengths of earlier runs.
    draws
        Lengths of simulated runs in seconds; without any, the prior mean is 0.5.
    predicted_s
        Predicted length in seconds.
    """
    low, high = BAND
    inside = sum(low * predicted_s <= draw <= high * predicted_s for draw in draws)
    held = 0
    for position, past in enumerate(past_predictions):
        others = [*past_predictions[:position], *past_predictions[position + 1 :]]
        held += low <= past.ratio / overhead(others) <= high
    share = inside / len(draws) if draws else 0.5
    return (WORTH_OF_DRAWS * share + held) / (WORTH_OF_DRAWS + len(past_predictions))


def evidence_of(calls: Sequence[Calls]) -> float:
    """Return the weight of the measurements, 0 (none) to 1.

    It is n / (n + 5) for a task with n samples; the result is the mean, weighted by work.
    """
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
    """Return the interval that contains the actual value with 80 % probability.

    The interval always includes the prediction.
    """
    values = sorted(draws)
    if len(past_predictions) >= PREDICTIONS_FOR_INTERVAL:
        usual = overhead(past_predictions)
        values = sorted(predicted * past.ratio / usual for past in past_predictions)
    if not values:
        return predicted, predicted
    low, high = (quantile(values, q) for q in INTERVAL)
    return min(low, predicted), max(high, predicted)
