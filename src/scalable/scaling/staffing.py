"""Worker counts for a stream of unannounced tasks. This module does no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

#: Initial width in seconds of the bins in which arriving tasks are counted. Rare tasks get wider
#: bins.
BIN_S = 15.0
KEPT_BINS = 48
#: Minimum number of bins, and minimum number of bins with a task, for an estimate of the rate.
LEAST_BINS = 4
LEAST_FILLED = 3
#: Bins are widened until at least this number of bins contain tasks.
ENOUGH_FILLED = 8
#: Limit of a bin's count, as a multiple of the median count of bins with tasks. It prevents that a
#: burst counts as a rate.
LARGEST_BIN = 3.0
KEPT_GAPS = 50


class ArrivalRate:
    """Estimate of the tasks that arrive per second: a line through the latest time bins."""

    def __init__(self) -> None:
        self._bins: deque[int] = deque(maxlen=KEPT_BINS)
        self._width = BIN_S
        self._start: float | None = None
        self._counted = 0
        self._line: tuple[float, float] = (0.0, 0.0)

    def see(self, now: float, submitted: int) -> None:
        if self._start is None:
            # The arrival times of earlier tasks are not known.
            self._start, self._counted = now, submitted
            return
        fitted = False
        while now - self._start >= self._width:
            # Tasks since the previous record are counted in the first bin that ended since then.
            self._bins.append(submitted - self._counted)
            self._counted = submitted
            self._start += self._width
            fitted = True
            if len(self._bins) == KEPT_BINS and sum(n > 0 for n in self._bins) < ENOUGH_FILLED:
                bins = list(self._bins)
                paired = [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
                self._bins = deque(paired, maxlen=KEPT_BINS)
                self._width *= 2
        if fitted:
            self._line = self._fitted()

    def _fitted(self) -> tuple[float, float]:
        """Return the tasks per second at the end of the last bin, and their slope."""
        count = len(self._bins)
        filled = [n for n in self._bins if n]
        if count < LEAST_BINS or len(filled) < LEAST_FILLED:
            return 0.0, 0.0
        most = LARGEST_BIN * median(filled)
        bins = [min(n, most) for n in self._bins]
        mean, middle = fmean(bins), (count - 1) / 2
        spread = sum((i - middle) ** 2 for i in range(count))
        slope = sum((i - middle) * n for i, n in enumerate(bins)) / spread
        # The slope is reduced by the share that chance explains in a steady (Poisson) stream.
        chance = mean / spread
        slope *= max(0.0, 1 - chance / slope**2) if slope else 0.0
        level = mean + slope * (count / 2)
        return max(0.0, level) / self._width, slope / self._width**2

    def at(self, ahead_s: float) -> float:
        """Return the expected tasks per second in ``ahead_s`` seconds, or 0 if unknown."""
        level, slope = self._line
        return max(0.0, level + slope * ahead_s)


def waiting_share(workers: int, load: float) -> float:
    """Return the share of tasks that wait for a worker, by Erlang's C formula (1917).
    ``load`` is the number of tasks per second times their duration, and less than ``workers``.
    """
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / workers * (1 - blocked))


def standing_workers(
    rate: float, length_s: float, startup_s: float, billed_s: float, weight: float
) -> int:
    """Return the number of workers to keep for a stream of ``rate`` tasks per second.
    It minimizes ``weight * ln(time) + (1 - weight) * ln(cost)`` of a task. With 0 workers, each
    task waits for a worker's start and pays ``billed_s`` for it.
    """
    # With n workers, a task waits by Erlang's formula and costs n / rate worker-seconds.
    load = rate * length_s
    if load <= 0:
        return 0
    best, least = 0, _worth(length_s + startup_s, load + rate * billed_s, weight)
    count = int(load) + 1
    while count <= load + 4 * math.sqrt(load) + 2:
        waiting = waiting_share(count, load) * length_s / (count - load)
        worth = _worth(length_s + waiting, count, weight)
        if worth < least:
            best, least = count, worth
        count += 1
    return best


def _worth(time_s: float, cost_s: float, weight: float) -> float:
    return weight * math.log(time_s) + (1 - weight) * math.log(cost_s)


def hold_s(gaps: Sequence[float], start_worth_s: float) -> float:
    """Return the seconds for which the last idle worker of a stream is kept.
    This is the ski-rental problem (Karlin et al. 1990) with the observed gaps between tasks.
    ``start_worth_s`` is the idle time that costs as much as a release and another start. A gap
    costs at most twice as much as with knowledge of its duration, or ``1 + h / start_worth_s``
    times as much for a longer result ``h``.
    """
    # The best time is the one that would have cost least in the past gaps.
    best, least, below = 0.0, start_worth_s * len(gaps), 0.0
    for place, gap in enumerate(sorted(gaps), 1):
        below += gap
        beyond = len(gaps) - place
        cost = below + (gap + start_worth_s) * beyond
        if cost < least or (place == len(gaps) and cost <= least):
            best, least = gap, cost
    return best if gaps and best < max(gaps) else max(start_worth_s, 1.1 * best)


def served_s(call_s: float, calls: float, startup_s: float) -> float:
    """Return the waiting seconds that an existing worker saves over all tasks of a burst."""
    served = min(max(1.0, calls), math.ceil(startup_s / call_s))
    return served * (startup_s - call_s * (served - 1) / 2)
