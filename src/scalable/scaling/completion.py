"""When pending calls will have ended, and how far that can be relied on. Pure.

What is not known of a call is drawn from those that ended lately; calls go, in their order, to the
worker that is free first.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, stdev
from typing import NamedTuple

#: A prediction holds where what comes lies between these times of it.
BAND = (0.8, 1.25)
#: So many calls are placed one by one; what is before them is spread evenly over the workers.
PLACED_CALLS = 1000
#: Placements of calls that one prediction may cost.
PLACEMENTS = 6_000
#: Standard deviation of the logarithms of running times where nothing is known, and how many ended
#: calls that assumption is worth.
ASSUMED_SPREAD, ASSUMED_WEIGHT = 0.6, 1.0
#: The same of running times that the caller states.
STATED_SPREAD = 0.5
#: As many predictions as have come true or not until they weigh as much as the calculation.
CALCULATION_WEIGHT = 5.0


@dataclass(frozen=True)
class Pending:
    """The pending calls of one pool.

    Attributes
    ----------
    stated
        For each call, its running time in seconds, or None where nobody says.
    ended
        Running times of calls that ended lately, in seconds.
    workers
        How many share the calls.
    """

    stated: Sequence[float | None]
    ended: Sequence[float]
    workers: int

    @property
    def known(self) -> bool:
        """Whether anything can be said of when they end."""
        return not self.stated or (self.workers > 0 and bool(self.samples or all_known(self)))

    @property
    def samples(self) -> Sequence[float]:
        """Running times that unknown ones are taken from."""
        return self.ended or [d for d in self.stated if d is not None]


def all_known(pending: Pending) -> bool:
    """Whether every call says how long it takes."""
    return None not in pending.stated


class Prediction(NamedTuple):
    """Seconds, and the probability that they hold."""

    seconds: float | None
    confidence: float


def predict(pools: Sequence[Pending]) -> Prediction:
    """When the last of the pending calls ends.

    Parameters
    ----------
    pools
        The pools, each with its pending calls.
    """
    busy = [pool for pool in pools if pool.stated]
    if not busy:
        return Prediction(0.0, 1.0)
    if not all(pool.known for pool in busy):
        return Prediction(None, 0.0)
    source = random.Random(0)  # noqa: S311 - the same question gets the same answer
    calls = sum(min(len(pool.stated), PLACED_CALLS) for pool in busy)
    draws = max(12, min(60, PLACEMENTS // calls))
    plain = draws if any(not all_known(pool) for pool in busy) else 1
    seconds = median(max(_draw(pool, source) for pool in busy) for _ in range(plain))
    if not seconds:
        return Prediction(0.0, 1.0)
    low, high = (bound * seconds for bound in BAND)
    drawn = (max(_doubtful(pool, source) for pool in busy) for _ in range(draws))
    inside = sum(low <= one <= high for one in drawn)
    return Prediction(seconds, (1 + inside) / (2 + draws))


def _draw(pool: Pending, source: random.Random) -> float:
    """Seconds until a pool's calls have ended, with unknown running times drawn."""
    samples = pool.samples
    return _placed([source.choice(samples) if d is None else d for d in pool.stated], pool.workers)


def _doubtful(pool: Pending, source: random.Random) -> float:
    """The same, with what is not known of the running times: their mean, and their spread."""
    spread, seen = _spread(pool.ended), len(pool.ended)
    missing = math.sqrt(max(0.0, spread**2 - _observed_spread(pool.ended) ** 2))
    stated = min(spread, STATED_SPREAD)
    samples = pool.samples
    gauss, choice = source.gauss, source.choice
    common = gauss(0.0, (stated if all_known(pool) else spread) / math.sqrt(1 + seen))
    lengths = [
        choice(samples) * math.exp(gauss(0.0, missing))
        if duration is None
        else duration * math.exp(gauss(0.0, stated))
        for duration in pool.stated
    ]
    return math.exp(common) * _placed(lengths, pool.workers)


def _observed_spread(ended: Sequence[float]) -> float:
    """Standard deviation of the logarithms."""
    return stdev([math.log(max(d, 1e-6)) for d in ended]) if len(ended) > 1 else 0.0


def _spread(ended: Sequence[float]) -> float:
    """The same, leaning on the assumed one where few calls have ended."""
    count = max(0, len(ended) - 1)
    total = ASSUMED_WEIGHT * ASSUMED_SPREAD**2 + count * _observed_spread(ended) ** 2
    return math.sqrt(total / (ASSUMED_WEIGHT + count))


def _placed(lengths: Sequence[float], workers: int) -> float:
    """Seconds until calls have ended that go, in their order, to who is free first."""
    early, late = lengths[:-PLACED_CALLS], lengths[-PLACED_CALLS:]
    free = [sum(early) / workers] * min(workers, len(late))
    for length in late:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@dataclass
class Reliability:
    """How many predictions came true; those that new work overtook count for nothing."""

    held: int = 0
    judged: int = 0
    _open: tuple[float, float] | None = field(default=None, init=False)
    _seen: tuple[float, int] = field(default=(0.0, 0), init=False)

    def look(self, pending: int, now: float) -> None:
        """Take note of how many calls are pending.

        Parameters
        ----------
        pending
            Calls of all pools.
        now
            Monotonic seconds.
        """
        last, before = self._seen
        if pending > before:
            self._open = None
        elif pending == 0 and self._open is not None:
            since, predicted = self._open
            # The last call ended between two looks.
            actual = (last + now) / 2 - since
            self.judged += 1
            self.held += BAND[0] * predicted <= actual <= BAND[1] * predicted
            self._open = None
        self._seen = now, pending

    def note(self, predicted: float | None, now: float) -> None:
        """Remember a prediction, until it is seen whether it comes true."""
        if predicted and self._open is None:
            self._open = now, predicted

    def adjusted(self, confidence: float) -> float:
        """A calculated probability, weighed against how often predictions came true."""
        total = CALCULATION_WEIGHT * confidence + self.held
        return total / (CALCULATION_WEIGHT + self.judged)
