"""Random running times of calls, drawn from forecasts and from what is uncertain in them. No I/O.

Two things are uncertain: the distribution of a task's running times, of which earlier calls are a
sample, and the running time of one call. Each simulated run first draws a distribution for each
task and then the calls from it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean

from scalable.planning.network import spread_of
from scalable.planning.work import Calls

#: Assumed errors as standard deviations of logarithms: of durations in the manifest, of running
#: times that were measured on other targets, and of guesses.
ERROR_OF_MANIFEST, ERROR_ELSEWHERE, ERROR_OF_GUESS = 0.5, 0.5, 1.0
#: Minimum number of measured running times that are drawn again.
ENOUGH_TO_REPEAT = 10
#: Number of measured running times above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Number of calls of a group that are drawn; the sum of more follows from them.
_MOST_DRAWN = 100
#: Smallest running time in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6


class Lengths:
    """Distribution of a task's running times, and what is uncertain in it.

    Measured running times are drawn again (bootstrap). A few of them are taken as a sample of a
    lognormal distribution.

    Parameters
    ----------
    calls
        Calls of the task.
    """

    def __init__(self, calls: Calls) -> None:
        forecast = calls.forecast
        self._known: Sequence[float] = forecast.durations_s
        self._count = len(self._known) or forecast.samples
        self._spread = spread_of(forecast)
        mean_s = fmean(self._known) if self._known else forecast.mean_s
        self._log_mean = math.log(max(mean_s, _LEAST_S))

    def sums(self, sizes: Sequence[int], factor: float, chance: random.Random) -> list[float]:
        """Return drawn running times of groups of calls, each group one after the other.

        Parameters
        ----------
        sizes
            Number of calls of each group.
        factor
            Factor of all running times.
        chance
            Random numbers.
        """
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            # With n - 1 draws the mean varies as much as the mean of n calls does.
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
    """Return the sum of a number of running times, of which the first were drawn.

    The sum of all differs from its expectation by as many standard deviations as that of the first.

    Parameters
    ----------
    size
        Number of running times, at least as many as were drawn.
    drawn
        The first of them.
    mean
        Expected mean.
    """
    part, count = sum(drawn), len(drawn)
    if size == count:
        return part
    return size * mean + math.sqrt(size / count) * (part - count * mean)


def error_of(calls: Calls) -> float:
    """Return the error that all calls of a task share, as standard deviation of logarithms.

    The error of measured running times is not included.
    """
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
