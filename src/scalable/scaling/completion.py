"""Prediction of when pending tasks have finished, and of its reliability. No I/O.

Unknown durations are drawn from those of recently finished tasks. Without any, a duration with a
large error is assumed.
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
#: Number of tasks, at the end of a queue, that are placed one by one. Earlier tasks are spread
#: evenly over the workers.
PLACED_CALLS = 1000
#: Maximum number of placements of tasks for one prediction.
PLACEMENTS = 6_000
#: Assumed standard deviation of the logarithms of durations, and the number of finished tasks that
#: weigh as much as this assumption.
ASSUMED_SPREAD, ASSUMED_WEIGHT = 0.6, 1.0
#: Assumed error of durations that the caller states: standard deviation of their logarithms.
STATED_SPREAD = 0.5
#: Error of durations that are assumed because none is known: standard deviation of their
#: logarithms. One deviation is a factor of 7: tasks take seconds, minutes or hours.
UNKNOWN_SPREAD = 2.0
#: Number of past predictions that together weigh as much as the calculated probability.
CALCULATION_WEIGHT = 5.0


@dataclass(frozen=True)
class Pending:
    """Pending tasks of one pool."""

    #: Seconds of each task, or None if the caller gives none.
    stated: Sequence[float | None]
    #: Seconds of recently finished tasks.
    ended: Sequence[float]
    #: Number of workers that share the tasks.
    workers: int
    #: Assumed seconds of a task if none is known; None for no prediction then.
    assumed_s: float | None = None

    @property
    def known(self) -> bool:
        """True if the duration of any task is known."""
        return not self.stated or bool(self.ended) or any(d is not None for d in self.stated)

    @property
    def predictable(self) -> bool:
        return not self.stated or (self.workers > 0 and bool(self.samples))

    @property
    def samples(self) -> Sequence[float]:
        """Durations from which unknown durations are drawn."""
        if self.known or self.assumed_s is None:
            return self.ended or [d for d in self.stated if d is not None]
        return [self.assumed_s]


def all_known(pending: Pending) -> bool:
    """Return True if the duration of every task is stated."""
    return None not in pending.stated


class Prediction(NamedTuple):
    """Predicted seconds (None if unknown) and the probability that they are correct."""

    seconds: float | None
    confidence: float


def predict(pools: Sequence[Pending]) -> Prediction:
    """Predict the seconds until the last pending task of all pools has finished."""
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
    """Return the seconds until a pool's tasks have finished, with unknown durations drawn."""
    samples = pool.samples
    return _placed([source.choice(samples) if d is None else d for d in pool.stated], pool.workers)


def _doubtful(pool: Pending, source: random.Random) -> float:
    """Return the result of :func:`_draw` with random errors of all durations."""
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
    return stdev([math.log(max(d, 1e-6)) for d in ended]) if len(ended) > 1 else 0.0


def _spread(ended: Sequence[float]) -> float:
    """Return a mean of the observed and the assumed spread, weighted by the finished tasks."""
    count = max(0, len(ended) - 1)
    total = ASSUMED_WEIGHT * ASSUMED_SPREAD**2 + count * _observed_spread(ended) ** 2
    return math.sqrt(total / (ASSUMED_WEIGHT + count))


def _placed(lengths: Sequence[float], workers: int) -> float:
    """Return the seconds until all tasks have finished, each on the worker that is free first."""
    early, late = lengths[:-PLACED_CALLS], lengths[-PLACED_CALLS:]
    free = [sum(early) / workers] * min(workers, len(late))
    for length in late:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@dataclass
class Reliability:
    """Share of past predictions that were correct, without those that new tasks voided."""

    held: int = 0
    judged: int = 0
    _open: tuple[float, float] | None = field(default=None, init=False)
    _seen: tuple[float, int] = field(default=(0.0, 0), init=False)

    def look(self, pending: int, now: float) -> None:
        """Record the number of pending tasks, and judge the open prediction if it is zero."""
        last, before = self._seen
        if pending > before:
            self._open = None
        elif pending == 0 and self._open is not None:
            since, predicted = self._open
            # The last task finished between the previous call of this method and this one.
            actual = (last + now) / 2 - since
            self.judged += 1
            self.held += BAND[0] * predicted <= actual <= BAND[1] * predicted
            self._open = None
        self._seen = now, pending

    def note(self, predicted: float | None, now: float) -> None:
        """Keep a prediction until the pending tasks have finished, unless one is open."""
        if predicted and self._open is None:
            self._open = now, predicted

    def adjusted(self, confidence: float) -> float:
        """Return a probability, corrected by the share of correct past predictions."""
        total = CALCULATION_WEIGHT * confidence + self.held
        return total / (CALCULATION_WEIGHT + self.judged)
