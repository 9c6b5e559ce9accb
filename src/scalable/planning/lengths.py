"""Random task durations, drawn from forecasts and their uncertainty. No I/O.

Earlier tasks are a sample of a name's distribution. Each simulated run first draws such a
distribution for each name, then the tasks from it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean

from scalable.planning.network import spread_of
from scalable.planning.work import Calls

#: Assumed errors as standard deviations of logarithms: of durations in the manifest, of durations
#: that were measured on other targets, and of guesses.
ERROR_OF_MANIFEST, ERROR_ELSEWHERE, ERROR_OF_GUESS = 0.5, 0.5, 1.0
#: Minimum number of measured durations for a bootstrap.
ENOUGH_TO_REPEAT = 10
#: Number of measured durations above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Maximum number of drawn tasks of a group. The sum of a larger group is extrapolated.
_MOST_DRAWN = 100
#: Smallest duration in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6


class Lengths:
    """Distribution of a name's durations: a bootstrap, or a lognormal one if few were measured."""

    def __init__(self, calls: Calls) -> None:
        forecast = calls.forecast
        self._known: Sequence[float] = forecast.durations_s
        self._count = len(self._known) or forecast.samples
        self._spread = spread_of(forecast)
        mean_s = fmean(self._known) if self._known else forecast.mean_s
        self._log_mean = math.log(max(mean_s, _LEAST_S))

    def sums(self, sizes: Sequence[int], factor: float, chance: random.Random) -> list[float]:
        """Draw the total duration of each group of tasks, multiplied by ``factor``."""
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            # With n - 1 draws the mean varies as much as the mean of n tasks does.
            few = len(self._known) <= _MOST_REPEATED
            again = chance.choices(self._known, k=len(self._known) - 1) if few else self._known
            drawn, mean = chance.choices(again, k=count), fmean(again)
        else:
            spread = self._spread
            middle = self._log_mean - spread**2 / 2
            if not spread:
                return [factor * size * math.exp(middle) for size in sizes]
            if self._count:
                middle = chance.gauss(middle, spread / math.sqrt(self._count))
            drawn = [math.exp(chance.gauss(middle, spread)) for _ in range(count)]
            mean = math.exp(middle + spread**2 / 2)
        each = iter(drawn)
        return [
            factor * _sum_of(size, list(itertools.islice(each, part)), mean)
            for size, part in zip(sizes, drawn_sizes, strict=True)
        ]


def _sum_of(size: int, drawn: Sequence[float], mean: float) -> float:
    """Extrapolate the sum of ``size`` durations from the first ones."""
    # The sum of all differs from its expectation by as many standard deviations as the part.
    part, count = sum(drawn), len(drawn)
    if size == count:
        return part
    return size * mean + math.sqrt(size / count) * (part - count * mean)


def error_of(calls: Calls) -> float:
    """Return the error (of logarithms) that a name's tasks share, without the sampling error."""
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
