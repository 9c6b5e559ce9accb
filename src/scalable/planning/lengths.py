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
from dataclasses import dataclass
from statistics import fmean, stdev

from scalable.planning.network import spread_of
from scalable.planning.variation import chi_squared
from scalable.planning.work import Calls

#: Assumed errors of durations in the manifest and of guesses, as standard deviations of logarithms.
ERROR_OF_MANIFEST, ERROR_OF_GUESS = 0.5, 1.0
#: Prior of the spread of a task's running times, as standard deviation of logarithms, and the
#: number of tasks that the prior is worth.
ASSUMED_SPREAD, WORTH_OF_SPREAD = 0.25, 4
#: Minimum number of measured running times that are drawn again.
ENOUGH_TO_REPEAT = 10
#: Share of the measured running times from which the tail of their distribution is estimated, and
#: the largest estimate; with an estimate of 1 or more, the mean would be infinite.
_TAIL_SHARE, _HEAVIEST_TAIL = 0.2, 0.8
#: Number of measured running times above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Running times below this share of their mean count as long as this share.
_NEGLIGIBLE = 0.1
#: Smallest running time in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6
#: Smallest spread that is assumed for other tasks.
_LEAST_SPREAD = 0.05
#: Largest drawn spread of few running times.
_WIDEST = 1.5


class Lengths:
    """Distribution of a task's running times, and what is uncertain in it.

    Measured running times are drawn again (bootstrap), besides a longer one from the tail of their
    distribution. A few of them are taken as a sample of a lognormal distribution whose parameters
    have the conjugate prior (normal and scaled inverse chi-squared, Gelman et al. 2013, 3.3).

    Parameters
    ----------
    calls
        Calls of the task.
    usual
        Spread of running times within the tasks of the workflow.
    """

    def __init__(self, calls: Calls, usual: UsualSpread) -> None:
        forecast = calls.forecast
        known = forecast.durations_s
        self._known: Sequence[float] = known
        self._count = len(known) or forecast.samples
        self._spread = spread_of(forecast)
        self._middle = math.log(max(forecast.mean_s, _LEAST_S)) - self._spread**2 / 2
        self._squares = 0.0
        if known:
            logs = _logs(known)
            self._middle = fmean(logs)
            self._squares = sum((log - self._middle) ** 2 for log in logs)
            self._longest, self._tail = max(known), _tail_index(known, usual.scale)

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
            Spread of running times within the tasks of the workflow, in this run.
        chance
            Random numbers.
        """
        count = sum(sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            drawn = self._again(count, chance)
        else:
            spread, middle = self._spread, self._middle
            if self._known:
                squares = WORTH_OF_SPREAD * usual**2 + self._squares
                freedom = WORTH_OF_SPREAD + self._count - 1
                spread = min(_WIDEST, math.sqrt(squares / chi_squared(freedom, chance)))
            if not spread:
                return [factor * size * math.exp(middle) for size in sizes]
            if self._count:
                middle = chance.gauss(middle, spread / math.sqrt(self._count))
            drawn = [math.exp(chance.gauss(middle, spread)) for _ in range(count)]
        if len(sizes) == count:
            return [factor * length for length in drawn]
        each = iter(drawn)
        return [factor * sum(itertools.islice(each, size)) for size in sizes]

    def _again(self, count: int, chance: random.Random) -> list[float]:
        """Return running times that are drawn from the measured ones."""
        known = self._known
        # With n - 1 draws the mean varies as much as the mean of n calls does.
        few = len(known) <= _MOST_REPEATED
        again = chance.choices(known, k=len(known) - 1) if few else known
        # One of n + 1 calls is expected to take longer than all n measured ones.
        longest = self._longest * math.exp(self._tail * chance.expovariate(1.0))
        return chance.choices([*again, longest], k=count)


@dataclass(frozen=True)
class UsualSpread:
    """Spread of running times within the tasks of a workflow, which resemble each other.

    Its square has a scaled inverse chi-squared distribution (Gelman et al. 2013, 3.3).

    Attributes
    ----------
    scale, freedom
        Standard deviation of logarithms, and the number of tasks that it is worth.
    """

    scale: float = ASSUMED_SPREAD
    freedom: float = WORTH_OF_SPREAD

    @classmethod
    def of(cls, calls: Sequence[Calls]) -> UsualSpread:
        """Return the geometric mean of the tasks' spreads, weighted by work, and of the prior."""
        found = [
            (c.count * c.forecast.mean_s, _log_spread(known))
            for c in calls
            if len(known := c.forecast.durations_s) > 1
        ]
        total = sum(work for work, _ in found)
        if not total:
            return cls()
        # Number of tasks of equal work that would tell as much (Kish 1965).
        tasks = total**2 / sum(work**2 for work, _ in found)
        logs = sum(work * spread for work, spread in found) / total
        freedom = WORTH_OF_SPREAD + tasks
        mean = (tasks * logs + WORTH_OF_SPREAD * math.log(ASSUMED_SPREAD)) / freedom
        return cls(math.exp(mean), freedom)

    def draw(self, chance: random.Random) -> float:
        """Return a random spread."""
        spread = self.scale * math.sqrt(self.freedom / chi_squared(self.freedom, chance))
        return min(_WIDEST, spread)


def _logs(values: Sequence[float]) -> list[float]:
    """Return logarithms of running times.

    Calls that are much shorter than the others do not matter to the length of a run, and do not
    show how much longer than these the next call may be.
    """
    least = max(_LEAST_S, _NEGLIGIBLE * fmean(values))
    return [math.log(max(value, least)) for value in values]


def _log_spread(values: Sequence[float]) -> float:
    """Return the logarithm of the standard deviation of logarithms, unbiased for normal ones."""
    freedom = len(values) - 1
    spread = stdev(_logs(values))
    # Expected logarithm of a chi-squared variable / its degrees of freedom, in two terms.
    bias = -1 / freedom - 1 / (3 * freedom**2)
    return math.log(max(_LEAST_SPREAD, spread)) - bias / 2


def _tail_index(values: Sequence[float], usual: float) -> float:
    """Return the index of a Pareto tail of running times (Hill 1975), shrunk towards ``usual``."""
    ordered = sorted(values, reverse=True)
    above = round(_TAIL_SHARE * len(ordered))
    if not above:
        return usual
    floor = math.log(max(ordered[above], _LEAST_S))
    logs = sum(math.log(max(value, _LEAST_S)) - floor for value in ordered[:above])
    index = (WORTH_OF_SPREAD * usual + logs) / (WORTH_OF_SPREAD + above)
    return min(_HEAVIEST_TAIL, index)


def error_of(calls: Calls) -> float:
    """Return the error of a forecast that all calls share, as standard deviation of logarithms.

    The error of measured running times is not included.
    """
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
