"""Worker counts for a stream: calls that arrive over time and are not known in advance. No I/O.

Waiting times are computed by queueing theory (Erlang 1917). The time for which an idle worker is
kept is computed from the observed gaps between calls. This is the ski-rental problem (Karlin et al.
1990) with the observed distribution of gaps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

#: Initial width in seconds of the bins in which arriving calls are counted. Rare calls get wider
#: bins.
BIN_S = 15.0
KEPT_BINS = 48
#: Minimum number of bins, and minimum number of bins with a call, for an estimate of the rate.
LEAST_BINS = 4
LEAST_FILLED = 3
#: Bins are widened until at least this number of bins contain calls.
ENOUGH_FILLED = 8
#: Limit of a bin's count, as a multiple of the median count of bins with calls. It keeps a burst
#: from being taken for a rate.
LARGEST_BIN = 3.0
KEPT_GAPS = 50


class ArrivalRate:
    """Estimate of the calls that arrive per second, from the total number of calls over time.

    The estimate is a straight line, fitted to the numbers of calls in the latest time bins. The
    slope is reduced by the share that chance would explain in a steady stream, in which the numbers
    follow a Poisson distribution.
    """

    def __init__(self) -> None:
        self._bins: deque[int] = deque(maxlen=KEPT_BINS)
        self._width = BIN_S
        self._start: float | None = None
        self._counted = 0
        self._line: tuple[float, float] = (0.0, 0.0)

    def see(self, now: float, submitted: int) -> None:
        """Record the total number of calls that have arrived by now."""
        if self._start is None:
            # The arrival times of earlier calls are not known.
            self._start, self._counted = now, submitted
            return
        fitted = False
        while now - self._start >= self._width:
            # Calls since the previous record are counted in the first bin that ended since then.
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
        """Return the calls per second at the end of the last bin, and their change per second."""
        count = len(self._bins)
        filled = [n for n in self._bins if n]
        if count < LEAST_BINS or len(filled) < LEAST_FILLED:
            return 0.0, 0.0
        most = LARGEST_BIN * median(filled)
        bins = [min(n, most) for n in self._bins]
        mean, middle = fmean(bins), (count - 1) / 2
        spread = sum((i - middle) ** 2 for i in range(count))
        slope = sum((i - middle) * n for i, n in enumerate(bins)) / spread
        chance = mean / spread  # variance of the slope of a steady stream
        slope *= max(0.0, 1 - chance / slope**2) if slope else 0.0
        level = mean + slope * (count / 2)
        return max(0.0, level) / self._width, slope / self._width**2

    def at(self, ahead_s: float) -> float:
        """Return the calls per second expected in ``ahead_s`` seconds; 0 if too few are known."""
        level, slope = self._line
        return max(0.0, level + slope * ahead_s)


def waiting_share(workers: int, load: float) -> float:
    """Return the share of calls that have to wait for a worker (Erlang's C formula).

    Parameters
    ----------
    workers
        Number of workers; it must exceed ``load``.
    load
        Calls per second times the running time of a call in seconds.
    """
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / workers * (1 - blocked))


def standing_workers(
    rate: float, length_s: float, startup_s: float, billed_s: float, weight: float
) -> int:
    """Return the number of workers to keep for a stream; 0 if a new worker per call is better.

    The result minimizes ``weight * ln(time) + (1 - weight) * ln(cost)`` of a call. With ``n``
    workers, a call waits according to Erlang's formula and costs ``n / rate`` worker-seconds.
    Without workers, each call waits for the start of a worker and pays for this start.

    Parameters
    ----------
    rate
        Calls per second.
    length_s
        Running time of a call in seconds.
    startup_s, billed_s
        Seconds that the start of a worker takes, and the billed part of these seconds.
    weight
        Weight of time against cost: 0 if only cost counts, 1 if only time counts.
    """
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

    The best time is the time that would have cost least in the past gaps. If it is shorter than the
    longest gap, it is the result. Otherwise the result is the larger of ``start_worth_s`` and 1.1
    times the longest gap. Without past gaps the result is ``start_worth_s``.

    With the result ``start_worth_s``, a gap costs at most twice as much as with knowledge of its
    length. With a longer result ``h``, it costs at most ``1 + h / start_worth_s`` times as much.

    Parameters
    ----------
    gaps
        Lengths of past gaps, in which no call was waiting or running, in seconds.
    start_worth_s
        Seconds of idling that cost as much as releasing the worker and starting another one.
    """
    best, least, below = 0.0, start_worth_s * len(gaps), 0.0
    for place, gap in enumerate(sorted(gaps), 1):
        below += gap
        beyond = len(gaps) - place
        cost = below + (gap + start_worth_s) * beyond
        if cost < least or (place == len(gaps) and cost <= least):
            best, least = gap, cost
    return best if gaps and best < max(gaps) else max(start_worth_s, 1.1 * best)


def served_s(call_s: float, calls: float, startup_s: float) -> float:
    """Return the waiting seconds, over all calls of a burst, that one existing worker saves.

    Parameters
    ----------
    call_s
        Mean running time of a call in seconds.
    calls
        Number of calls of the burst: calls that arrive together.
    startup_s
        Seconds that the start of a worker takes.
    """
    served = min(max(1.0, calls), math.ceil(startup_s / call_s))
    return served * (startup_s - call_s * (served - 1) / 2)
