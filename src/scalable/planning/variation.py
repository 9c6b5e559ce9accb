"""Variation of the running times of all calls from run to run. No I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Assumed variation from run to run, as standard deviation of logarithms, and the number of
#: measurements that the assumption is worth.
ASSUMED_VARIATION, WORTH_OF_VARIATION = 0.05, 3.0


class RunLevel(NamedTuple):
    """Running times of one run beside those of all runs.

    Attributes
    ----------
    log_ratio
        Logarithm of the run's work / the work of as many calls of the mean lengths of all runs.
    error
        Standard deviation of ``log_ratio`` if calls vary and runs do not.
    """

    log_ratio: float
    error: float


@dataclass(frozen=True)
class RunSpread:
    """Variation of the running times of all calls from run to run.

    Its square has a scaled inverse chi-squared distribution (Gelman et al. 2013, 3.3).

    Attributes
    ----------
    scale, freedom
        Standard deviation of logarithms, and the number of measurements that it is worth.
    runs
        Number of earlier runs.
    """

    scale: float = ASSUMED_VARIATION
    freedom: float = WORTH_OF_VARIATION
    runs: int = 1

    @classmethod
    def of(cls, levels: Sequence[RunLevel]) -> RunSpread:
        """Return the variation between earlier runs."""
        count = len(levels)
        if count < 2:
            return cls(runs=max(1, count))
        mean = sum(level.log_ratio for level in levels) / count
        found = sum((level.log_ratio - mean) ** 2 for level in levels)
        sampling = sum(level.error**2 for level in levels) * (count - 1) / count
        freedom = WORTH_OF_VARIATION + count - 1
        squares = WORTH_OF_VARIATION * ASSUMED_VARIATION**2 + max(0.0, found - sampling)
        return cls(math.sqrt(squares / freedom), freedom, count)

    def draw(self, chance: random.Random) -> float:
        """Return the logarithm of the next run's running times beside those of the earlier runs."""
        spread = self.scale * math.sqrt(self.freedom / chi_squared(self.freedom, chance))
        return chance.gauss(0, spread * math.sqrt(1 + 1 / self.runs))


def chi_squared(freedom: float, chance: random.Random) -> float:
    """Return a random number with a chi-squared distribution.

    Parameters
    ----------
    freedom
        Number of degrees of freedom.
    chance
        Random numbers.
    """
    return max(1e-9, 2 * chance.gammavariate(freedom / 2, 1.0))
