"""Prediction of the time when pending calls end, and of its reliability. No I/O.

An unknown running time is drawn at random from the running times of recently ended calls; if there
are none, a time is assumed, with a large error. Calls are placed in order, each on the worker that
becomes free first.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, stdev
from typing import NamedTuple

#: A prediction counts as correct if actual time / predicted time is in this range.
BAND = (0.8, 1.25)
#: Number of calls, at the end of a queue, that are placed one by one. Earlier calls are spread
#: evenly over the workers.
PLACED_CALLS = 1000
#: Maximum number of placements of calls for one prediction.
PLACEMENTS = 6_000
#: Assumed standard deviation of the logarithms of running times, and the number of ended calls that
#: weigh as much as this assumption.
ASSUMED_SPREAD, ASSUMED_WEIGHT = 0.6, 1.0
#: Assumed error of running times that the caller states: standard deviation of their logarithms.
STATED_SPREAD = 0.5
#: Error of running times that are assumed because none is known: standard deviation of their
#: logarithms. One deviation is a factor of 7: calls take seconds, minutes or hours.
UNKNOWN_SPREAD = 2.0
#: Number of past predictions that together weigh as much as the calculated probability.
CALCULATION_WEIGHT = 5.0


@dataclass(frozen=True)
class Pending:
    """The pending calls of one pool.

    Attributes
    ----------
    stated
        Running time of each call in seconds, None if the caller gives no time.
    ended
        Running times of calls that ended lately, in seconds.
    workers
        Number of workers that share the calls.
    assumed_s
        Running time of a call in seconds to assume if none is known. None to predict nothing then.
    """

    stated: Sequence[float | None]
    ended: Sequence[float]
    workers: int
    assumed_s: float | None = None

    @property
    def known(self) -> bool:
        """Whether the running time of any of the calls is known."""
        return not self.stated or bool(self.ended) or any(d is not None for d in self.stated)

    @property
    def predictable(self) -> bool:
        """Whether the end of the calls can be predicted."""
        return not self.stated or (self.workers > 0 and bool(self.samples))

    @property
    def samples(self) -> Sequence[float]:
        """Running times from which unknown running times are drawn."""
        if self.known or self.assumed_s is None:
            return self.ended or [d for d in self.stated if d is not None]
        return [self.assumed_s]


def all_known(pending: Pending) -> bool:
    """Return whether the running time of every call is stated."""
    return None not in pending.stated


class Prediction(NamedTuple):
    """Predicted seconds (None if unknown) and the probability that the prediction is correct."""

    seconds: float | None
    confidence: float


def predict(pools: Sequence[Pending]) -> Prediction:
    """Predict the seconds until the last pending call of all pools has ended.

    Parameters
    ----------
    pools
        Pending calls of each pool.
    """
    busy = [pool for pool in pools if pool.stated]
    if not busy:
        return Prediction(0.0, 1.0)
    if not all(pool.predictable for pool in busy):
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
    """Return the seconds until a pool's calls have ended, with unknown running times drawn."""
    samples = pool.samples
    return _placed([source.choice(samples) if d is None else d for d in pool.stated], pool.workers)


def _doubtful(pool: Pending, source: random.Random) -> float:
    """Return the result of :func:`_draw` with random errors of all running times."""
    if not pool.known:
        return math.exp(source.gauss(0.0, UNKNOWN_SPREAD)) * _draw(pool, source)
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
    """Return the standard deviation of the logarithms of running times."""
    return stdev([math.log(max(d, 1e-6)) for d in ended]) if len(ended) > 1 else 0.0


def _spread(ended: Sequence[float]) -> float:
    """Return a mean of the observed and the assumed deviation, weighted by the ended calls."""
    count = max(0, len(ended) - 1)
    total = ASSUMED_WEIGHT * ASSUMED_SPREAD**2 + count * _observed_spread(ended) ** 2
    return math.sqrt(total / (ASSUMED_WEIGHT + count))


def _placed(lengths: Sequence[float], workers: int) -> float:
    """Return the seconds until all calls end if each goes to the worker that is free first."""
    early, late = lengths[:-PLACED_CALLS], lengths[-PLACED_CALLS:]
    free = [sum(early) / workers] * min(workers, len(late))
    for length in late:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@dataclass
class Reliability:
    """Share of past predictions that were correct; new calls void the prediction before them."""

    held: int = 0
    judged: int = 0
    _open: tuple[float, float] | None = field(default=None, init=False)
    _seen: tuple[float, int] = field(default=(0.0, 0), init=False)

    def look(self, pending: int, now: float) -> None:
        """Record the number of pending calls, and judge the kept prediction when none is left.

        Parameters
        ----------
        pending
            Number of pending calls of all pools.
        now
            Monotonic seconds.
        """
        last, before = self._seen
        if pending > before:
            self._open = None
        elif pending == 0 and self._open is not None:
            since, predicted = self._open
            # The last call ended between the previous call of this method and the present one.
            actual = (last + now) / 2 - since
            self.judged += 1
            self.held += BAND[0] * predicted <= actual <= BAND[1] * predicted
            self._open = None
        self._seen = now, pending

    def note(self, predicted: float | None, now: float) -> None:
        """Keep a prediction until the pending calls have ended, unless one is kept already."""
        if predicted and self._open is None:
            self._open = now, predicted

    def adjusted(self, confidence: float) -> float:
        """Return a calculated probability, corrected by the share of correct past predictions."""
        total = CALCULATION_WEIGHT * confidence + self.held
        return total / (CALCULATION_WEIGHT + self.judged)
