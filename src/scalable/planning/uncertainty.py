"""Confidence and intervals of predictions, from forecasts and from earlier runs. No I/O."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scalable.planning.knowledge import PastPrediction
from scalable.planning.network import Network, spread_of
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
#: Assumed errors of durations in the manifest and of guesses, as standard deviations of logarithms.
ERROR_OF_MANIFEST, ERROR_OF_GUESS = 0.3, 1.0
#: Error of a run's length that its calls do not explain, as standard deviation of logarithms.
ERROR_OF_RUN = 0.15
#: Number of samples that a duration in the manifest is worth, and number of samples with which the
#: weight of the measurements is 0.5 (see :func:`evidence_of`).
WORTH_OF_MANIFEST, HALF_CERTAIN = 1, 5

#: Number of simulated runs, and number of calls of one run that are simulated one by one.
_DRAWS = 100
_DRAWN_CALLS = 400


@dataclass(frozen=True)
class Draw:
    """One simulated run.

    Attributes
    ----------
    time_s
        Length of the run in seconds.
    work
        Work of each pool as a multiple of its expected work.
    """

    time_s: float
    work: Sequence[float]


def overhead(past_predictions: Sequence[PastPrediction]) -> float:
    """Return the median of actual length / predicted length; 1 with fewer than three runs."""
    if len(past_predictions) < PREDICTIONS_FOR_OVERHEAD:
        return 1.0
    return median(past.ratio for past in past_predictions)


def confidence(
    past_predictions: Sequence[PastPrediction],
    draws: Sequence[float],
    predicted_s: float,
    evidence: float,
) -> float:
    """Return the probability that a run takes 0.8 to 1.25 times as long as predicted.

    With past predictions, the result is the share of correct past predictions, estimated by the
    rule of succession. To judge one past prediction, the overhead of all others is applied to it.
    Without past predictions, the result is the share of simulated runs in that range, multiplied by
    ``evidence``.

    Parameters
    ----------
    past_predictions
        Predicted and actual lengths of earlier runs.
    draws
        Lengths of simulated runs in seconds.
    predicted_s
        Predicted length in seconds.
    evidence
        Weight of the measurements, 0 (none) to 1; see :func:`evidence_of`.
    """
    low, high = BAND
    if past_predictions:
        held = 0
        for position, past in enumerate(past_predictions):
            others = [*past_predictions[:position], *past_predictions[position + 1 :]]
            held += low <= past.ratio / overhead(others) <= high
        return (1 + held) / (len(past_predictions) + 2)
    if not draws:
        return 0.0
    inside = sum(low * predicted_s <= draw <= high * predicted_s for draw in draws)
    return inside / len(draws) * evidence


def evidence_of(calls: Sequence[Calls]) -> float:
    """Return the weight of the measurements, 0 (none) to 1.

    It is n / (n + 5) for a task with n samples; the result is the mean, weighted by work.
    """
    total = found = 0.0
    for c in calls:
        work = c.count * c.forecast.mean_s
        samples = c.forecast.samples if c.forecast.source == "history" else WORTH_OF_MANIFEST
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


def draw_runs(
    network: Network, calls: Sequence[Calls], workers: Sequence[int], seed: int = 0
) -> list[Draw]:
    """Return simulated runs, drawn at random from the forecasts; equal seeds give equal runs.

    Parameters
    ----------
    network
        Stages of the calls.
    calls
        Calls with their forecasts.
    workers
        Number of workers of each pool.
    seed
        Seed of the random numbers.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    by_name = {c.task: c for c in calls}
    drawn = _DRAWN_CALLS // max(1, sum(1 for stage in network.stages if stage.calls))
    draws = []
    for _ in range(_DRAWS):
        off = {c.task: math.exp(chance.gauss(0, _error_of(c))) for c in calls}
        times, work = [], [0.0] * len(network.tags)
        for stage in network.stages:
            if not stage.calls:
                times.append(0.0)
                continue
            slots = workers[stage.pool] * network.slots[stage.pool]
            group = [by_name[name] for name in stage.tasks]
            time_s, total = _draw_stage(group, off, slots, drawn, chance)
            times.append(time_s)
            work[stage.pool] += total
        expected = [sum(network.stages[i].work_s for i in own) for own in network.stages_of]
        length = network.compose(workers, times)[0] * math.exp(chance.gauss(0, ERROR_OF_RUN))
        draws.append(
            Draw(length, [w / e if e else 1.0 for w, e in zip(work, expected, strict=True)])
        )
    return draws


def _error_of(calls: Calls) -> float:
    """Return the error that all calls of a task share, as standard deviation of logarithms."""
    if calls.guessed:
        return ERROR_OF_GUESS
    if calls.forecast.source == "manifest":
        return ERROR_OF_MANIFEST
    return spread_of(calls.forecast) / math.sqrt(max(1, calls.forecast.samples))


def _draw_stage(
    group: Sequence[Calls],
    off: Mapping[str, float],
    slots: int,
    most: int,
    chance: random.Random,
) -> tuple[float, float]:
    """Return simulated length and work of one stage; for many calls only the sum is simulated."""
    count = sum(c.count for c in group)
    if not count:
        return 0.0, 0.0
    if len(group) == 1 and spread_of(group[0].forecast) == 0:
        each = group[0].forecast.mean_s * off[group[0].task]
        return math.ceil(count / slots) * each, count * each
    if count <= most:
        return _list_schedule(group, off, slots, chance)
    # With many calls, the error that they share dominates the variation of their sum.
    work = longest = tail = 0.0
    for c in group:
        mean, spread = c.forecast.mean_s * off[c.task], spread_of(c.forecast)
        varied = mean * math.sqrt(c.count * math.expm1(min(spread, 2.0) ** 2))
        work += max(0.0, chance.gauss(c.count * mean, varied))
        last = max(_draw_call(c, chance) for _ in range(min(c.count, 20))) * off[c.task]
        longest, tail = max(longest, last), max(tail, 0.5 * last)
    return max(work / slots + tail * (1 - 1 / slots), longest), work


def _list_schedule(
    group: Sequence[Calls], off: Mapping[str, float], slots: int, chance: random.Random
) -> tuple[float, float]:
    work = 0.0
    free = [0.0] * min(slots, sum(c.count for c in group))
    for c in group:
        for _ in range(c.count):
            length = _draw_call(c, chance) * off[c.task]
            work += length
            heapq.heapreplace(free, free[0] + length)
    return max(free), work


def _draw_call(calls: Calls, chance: random.Random) -> float:
    forecast = calls.forecast
    if forecast.durations_s:
        return chance.choice(forecast.durations_s)
    spread = spread_of(forecast)
    return forecast.mean_s * math.exp(chance.gauss(0, spread) - spread**2 / 2)
