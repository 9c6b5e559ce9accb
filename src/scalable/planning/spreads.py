"""Spread of the running times of a task, learned from few calls and from the other tasks. No I/O.

A spread is a standard deviation / mean. Spreads of tasks differ by orders of magnitude, so that
their logarithms have a normal prior; those of one workflow's tasks resemble each other. The
posterior is computed on a grid, from the squared deviations of running times from their mean.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Smallest and largest spread that is considered, and the number of spreads between them.
_LEAST, _WIDEST, _STEPS = 0.02, 2.0, 24
#: Spreads that are considered, with equal distances of their logarithms.
GRID: list[float] = [_LEAST * (_WIDEST / _LEAST) ** (step / (_STEPS - 1)) for step in range(_STEPS)]
_LOGS = [math.log(spread) for spread in GRID]


@dataclass(frozen=True)
class SpreadPrior:
    """Prior of the spreads of tasks.

    The defaults come from the tasks with at least five calls of fifteen recorded workflows,
    weighted by their work; ``benchmarks/calibration.py`` prints what they are without each family.

    Attributes
    ----------
    middle
        Median of the spreads of all tasks.
    between
        Standard deviation of the logarithms of the medians of workflows.
    within
        Standard deviation of the logarithms of the spreads of the tasks of a workflow.
    """

    middle: float = 0.2
    between: float = 0.85
    within: float = 0.65


class Evidence(NamedTuple):
    """Running times of a task as evidence of its spread.

    Attributes
    ----------
    squares, freedom
        Sum of the squared deviations from the mean, / the squared mean, and its degrees of freedom.
    work
        Share of the work of all tasks.
    """

    squares: float
    freedom: int
    work: float


class UsualSpread:
    """Posterior of the median spread of a workflow's tasks.

    Tasks count by their shares of the work: short calls vary more, and matter less.

    Parameters
    ----------
    prior
        Prior of the spreads.
    evidence
        Evidence of the workflow's tasks.
    """

    def __init__(self, prior: SpreadPrior, evidence: Sequence[Evidence] = ()) -> None:
        self.prior = prior
        found = [e for e in evidence if e.freedom > 0 and e.work > 0]
        total = sum(e.work for e in found)
        # Number of tasks of equal work that would tell as much (Kish 1965).
        tasks = total**2 / sum(e.work**2 for e in found) if found else 0.0
        middle = math.log(prior.middle)
        logs = [-(((log - middle) / prior.between) ** 2) / 2 for log in _LOGS]
        for e in found:
            likelihoods = likelihoods_of(e.squares, e.freedom)
            for place, log in enumerate(_LOGS):
                mean = sum(
                    likelihood * weight
                    for likelihood, weight in zip(likelihoods, self._around(log), strict=True)
                )
                logs[place] += tasks * e.work / total * math.log(max(mean, 1e-300))
        self._cumulated = _cumulated(logs)
        weights = [b - a for a, b in itertools.pairwise([0.0, *self._cumulated])]
        self.scale = math.exp(
            sum(w * log for w, log in zip(weights, _LOGS, strict=True)) / self._cumulated[-1]
        )

    def _around(self, middle: float) -> list[float]:
        """Return the weights of spreads in a workflow with a given logarithm of the median."""
        weights = [math.exp(-(((log - middle) / self.prior.within) ** 2) / 2) for log in _LOGS]
        total = sum(weights)
        return [weight / total for weight in weights]

    def draw(self, chance: random.Random) -> float:
        """Return the logarithm of a random median spread."""
        return _LOGS[_drawn(self._cumulated, chance)]


class TaskSpread:
    """Posterior of the spread of one task.

    Parameters
    ----------
    prior
        Prior of the spreads.
    squares, freedom
        See :class:`Evidence`.
    """

    def __init__(self, prior: SpreadPrior, squares: float = 0.0, freedom: int = 0) -> None:
        self._within = prior.within
        self._likelihoods = likelihoods_of(squares, freedom)
        self._given: dict[float, list[float]] = {}

    def draw(self, usual: float, chance: random.Random) -> float:
        """Return a random spread.

        Parameters
        ----------
        usual
            Logarithm of the median spread of the workflow's tasks, from :meth:`UsualSpread.draw`.
        chance
            Random numbers.
        """
        cumulated = self._given.get(usual)
        if cumulated is None:
            logs = [
                math.log(max(likelihood, 1e-300)) - ((log - usual) / self._within) ** 2 / 2
                for likelihood, log in zip(self._likelihoods, _LOGS, strict=True)
            ]
            cumulated = self._given[usual] = _cumulated(logs)
        return GRID[_drawn(cumulated, chance)]


def likelihoods_of(squares: float, freedom: int) -> list[float]:
    """Return the likelihood of each spread of the grid; the greatest is 1."""
    logs = [-freedom * log - squares / (2 * math.exp(2 * log)) for log in _LOGS]
    most = max(logs)
    return [math.exp(log - most) for log in logs]


def _cumulated(logs: Sequence[float]) -> list[float]:
    most = max(logs)
    return [*itertools.accumulate(math.exp(log - most) for log in logs)]


def _drawn(cumulated: Sequence[float], chance: random.Random) -> int:
    return min(bisect(cumulated, chance.random() * cumulated[-1]), len(cumulated) - 1)
