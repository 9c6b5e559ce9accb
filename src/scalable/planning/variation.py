"""Variation of all task durations from run to run. Does no I/O."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

#: Assumed variation from run to run, as standard deviation of logarithms.
ASSUMED_VARIATION = 0.05
#: Standard deviation of the logarithm of that variation: some programs' runs hardly differ, others'
#: by a quarter. Both values are assumptions, since recorded workflows have one run each.
_UNCERTAINTY = 1.0
#: Number of variations that are considered, and their range in standard deviations.
_STEPS, _RANGE = 21, 2.5


class RunLevel(NamedTuple):
    """Durations of one run relative to the durations of all runs."""

    #: Logarithm of the run's work / the work of as many tasks of mean duration.
    log_ratio: float
    #: Standard deviation of ``log_ratio`` if tasks vary and runs do not.
    error: float


@dataclass(frozen=True)
class RunSpread:
    """Variation of all task durations from run to run. Its logarithm has a normal prior."""

    #: Prior median of the variation, as standard deviation of logarithms.
    middle: float = ASSUMED_VARIATION
    #: Prior standard deviation of the logarithm of the variation.
    uncertainty: float = _UNCERTAINTY
    #: Levels of earlier runs.
    levels: tuple[RunLevel, ...] = ()

    @cached_property
    def _grid(self) -> tuple[list[float], list[float]]:
        """Considered variations, and their cumulative posterior weights."""
        steps = [_RANGE * (2 * step / (_STEPS - 1) - 1) for step in range(_STEPS)]
        spreads = [self.middle * math.exp(step * self.uncertainty) for step in steps]
        logs = [
            self._log_likelihood(spread) - step**2 / 2
            for spread, step in zip(spreads, steps, strict=True)
        ]
        most = max(logs)
        return spreads, [*itertools.accumulate(math.exp(log - most) for log in logs)]

    def _log_likelihood(self, spread: float) -> float:
        count = len(self.levels)
        if count < 2:
            return 0.0
        mean = fmean(level.log_ratio for level in self.levels)
        found = 0.0
        for log_ratio, error in self.levels:
            variance = spread**2 + error**2
            found -= (1 - 1 / count) * math.log(variance) + (log_ratio - mean) ** 2 / variance
        return found / 2

    def draw(self, chance: random.Random) -> float:
        """Draw the logarithm of (durations of the next run / durations of earlier runs)."""
        spreads, sums = self._grid
        place = bisect(sums, chance.random() * sums[-1])
        spread = spreads[min(place, len(spreads) - 1)]
        return chance.gauss(0, spread * math.sqrt(1 + 1 / max(1, len(self.levels))))
