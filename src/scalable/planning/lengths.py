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
from typing import NamedTuple

from scalable.planning.network import spread_of
from scalable.planning.spreads import Evidence, SpreadPrior, TaskSpread, UsualSpread
from scalable.planning.work import Calls

#: Assumed errors of durations in the manifest and of guesses, as standard deviations of logarithms.
ERROR_OF_MANIFEST, ERROR_OF_GUESS = 0.5, 1.0
#: Minimum number of measured running times that are drawn again.
ENOUGH_TO_REPEAT = 10
#: Share of the measured running times from which the tail of their distribution is estimated, and
#: the largest estimate; with an estimate of 1 or more, the mean would be infinite.
_TAIL_SHARE, _HEAVIEST_TAIL = 0.1, 0.8
#: Index of the tail of a lognormal distribution above its 90 % quantile / its spread: the mean of
#: the excess of logarithms. It is the prior of tails, worth this many calls.
_TAIL_OF_SPREAD = 0.47
_WORTH_OF_TAIL = 4
#: Number of measured running times above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Number of calls of a group that are drawn; the sum of more follows from them.
_MOST_DRAWN = 100
#: Smallest running time in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6


class Lengths:
    """Distribution of a task's running times, and what is uncertain in it.

    Measured running times are drawn again (bootstrap), besides longer ones from the tail of their
    distribution. A few of them are taken as a sample of a lognormal distribution whose spread has
    the posterior of :mod:`.spreads`.

    Parameters
    ----------
    calls
        Calls of the task.
    usual
        Usual spread of running times within the tasks of the workflow.
    """

    def __init__(self, calls: Calls, usual: UsualSpread) -> None:
        forecast = calls.forecast
        known = forecast.durations_s
        self._known: Sequence[float] = known
        self._count = len(known) or forecast.samples
        self._spread = spread_of(forecast)
        self._log_mean = math.log(max(fmean(known) if known else forecast.mean_s, _LEAST_S))
        self._spreads: TaskSpread | None = None
        if known:
            self._spreads = TaskSpread(usual.prior, squares_of(known), len(known) - 1)
            self._longest, self._tail = max(known), _Tail.of(known, _TAIL_OF_SPREAD * usual.scale)

    def sums(
        self, sizes: Sequence[int], factor: float, usual: float, chance: random.Random
    ) -> list[float]:
        """Return drawn running times of groups of calls, each group one after the other.

        Parameters
        ----------
        sizes
            Number of calls of each group.
        factor
            Factor of all running times.
        usual
            Logarithm of the usual spread of running times within tasks, in this run.
        chance
            Random numbers.
        """
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            drawn, mean = self._again(count, chance)
        else:
            spread, middle = self._spread, self._log_mean - self._spread**2 / 2
            if self._spreads is not None:
                spread = math.sqrt(math.log1p(self._spreads.draw(usual, chance) ** 2))
                # The measured mean is that of the drawn distribution; one call alone is its median.
                middle = self._log_mean - (1 - 1 / self._count) * spread**2 / 2
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

    def _again(self, count: int, chance: random.Random) -> tuple[list[float], float]:
        """Return running times that are drawn from the measured ones, and their expected mean."""
        known = self._known
        # With n - 1 draws the mean varies as much as the mean of n calls does.
        few = len(known) <= _MOST_REPEATED
        again = chance.choices(known, k=len(known) - 1) if few else known
        # Share of calls that take longer than all n measured ones; 1 / (n + 1) is expected.
        beyond = chance.betavariate(1, len(known))
        tail = min(_HEAVIEST_TAIL, self._tail.draw(chance))
        drawn = [
            self._longest * math.exp(tail * chance.expovariate(1.0))
            if chance.random() < beyond
            else length
            for length in chance.choices(again, k=count)
        ]
        return drawn, (1 - beyond) * fmean(again) + beyond * self._longest / (1 - tail)


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


def usual_spread(calls: Sequence[Calls], prior: SpreadPrior) -> UsualSpread:
    """Return the usual spread of running times within the tasks of a workflow."""
    evidence = []
    for c in calls:
        known = c.forecast.durations_s
        if len(known) > 1:
            work = c.count * c.forecast.mean_s
            evidence.append(Evidence(squares_of(known), len(known) - 1, work))
    return UsualSpread(prior, evidence)


def squares_of(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations of running times from their mean, / its square.

    Logarithms would give much weight to calls that are far shorter than the others. These are
    frequent, but matter little to the length of a run, and do not show how long the next call may
    be: in recorded workflows, calls of the tasks that do most of the work are skewed that way.
    """
    mean = fmean(values)
    return sum((value / mean - 1) ** 2 for value in values) if mean > 0 else 0.0


class _Tail(NamedTuple):
    """Index of a Pareto tail of running times, and the number of calls that tell of it."""

    heaviness: float
    calls: float

    @classmethod
    def of(cls, values: Sequence[float], usual: float) -> _Tail:
        """Return the index of Hill (1975), shrunk towards ``usual``."""
        ordered = sorted(values, reverse=True)
        above = round(_TAIL_SHARE * len(ordered))
        floor = math.log(max(ordered[above], _LEAST_S))
        logs = sum(math.log(max(value, _LEAST_S)) - floor for value in ordered[:above])
        calls = _WORTH_OF_TAIL + above
        return cls((_WORTH_OF_TAIL * usual + logs) / calls, calls)

    def draw(self, chance: random.Random) -> float:
        """Return a random index: excesses over the floor are exponential, in logarithms."""
        return self.heaviness * self.calls / chance.gammavariate(self.calls, 1.0)


def error_of(calls: Calls) -> float:
    """Return the error of a forecast that all calls share, as standard deviation of logarithms.

    The error of measured running times is not included.
    """
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
