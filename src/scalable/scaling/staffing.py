"""How many workers a stream of calls needs whose next calls are not known. Pure.

Queueing theory gives how long calls wait (Erlang 1917); what idle time is worth follows from the
gaps that were seen, as in the ski-rental problem (Karlin et al. 1990, with the gaps' own law).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

#: Arrivals are counted in bins of so many seconds, wider where calls come more rarely.
BIN_S = 15.0
KEPT_BINS = 48
#: Fewer bins, or fewer bins in which any call came, tell nothing of a rate.
LEAST_BINS = 4
LEAST_FILLED = 3
#: Bins are widened until so many of them have calls.
ENOUGH_FILLED = 8
#: No bin counts for more than so many times the usual one that has any: a burst is no rate.
LARGEST_BIN = 3.0
KEPT_GAPS = 50


class ArrivalRate:
    """Calls that come for each second, from how many had come at several moments.

    A straight line through the latest bins. Its slope is believed as far as it stands out from what
    chance does to the counts of a steady stream, which is Poisson's.
    """

    def __init__(self) -> None:
        self._bins: deque[int] = deque(maxlen=KEPT_BINS)
        self._width = BIN_S
        self._start: float | None = None
        self._counted = 0
        self._line: tuple[float, float] = (0.0, 0.0)

    def see(self, now: float, submitted: int) -> None:
        """Take note of how many calls have come by now."""
        if self._start is None:
            # What is there at the first look came at once.
            self._start, self._counted = now, submitted
            return
        fitted = False
        while now - self._start >= self._width:
            # What came since the last look is in the first bin that ended since.
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
        """Calls for each second at the end of the last bin, and how that changes each second."""
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
        """Calls for each second in so many seconds; 0 while too little was seen."""
        level, slope = self._line
        return max(0.0, level + slope * ahead_s)


def waiting_share(workers: int, load: float) -> float:
    """Share of calls that wait (Erlang's C), by its recursion over B.

    Parameters
    ----------
    workers
        Above ``load``.
    load
        Calls for each second times seconds of a call.
    """
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / workers * (1 - blocked))


def standing_workers(
    rate: float, length_s: float, startup_s: float, billed_s: float, weight: float
) -> int:
    """Workers to keep for a stream: 0 where it is better to ask for one for each call.

    Minimizes ``weight * ln(time) + (1 - weight) * ln(cost)`` of a call: with ``n`` workers it waits
    as Erlang says and costs ``n / rate``; without, it waits for a start and pays for it.

    Parameters
    ----------
    rate
        Calls for each second.
    length_s
        Seconds of a call.
    startup_s, billed_s
        Seconds of a start, and how many of them are paid for.
    weight
        What time is worth, 0 to 1.
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
    """How long the last idle worker of a stream is kept, in seconds.

    What would have been best for the gaps that were seen. Where that is to stay through all of
    them, as where none was seen, until idling has cost what a start does: never more than twice
    what would have been best.

    Parameters
    ----------
    gaps
        Lengths of past times without any call, in seconds.
    start_worth_s
        Seconds of idling that cost as much as letting the worker go and starting another one.
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
    """How much less calls that come together wait where one worker is there, in seconds of all.

    Parameters
    ----------
    call_s
        Mean seconds of a call.
    calls
        How many come together.
    startup_s
        Seconds of a start.
    """
    served = min(max(1.0, calls), math.ceil(startup_s / call_s))
    return served * (startup_s - call_s * (served - 1) / 2)
