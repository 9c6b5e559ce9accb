"""Prediction of the time when all known calls end, from sums over task names. No I/O.

Its cost does not depend on the number of calls, so that it can be made again and again while a
workflow runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

#: Assumed standard deviation of the logarithms of running times if fewer than two were measured.
ASSUMED_SPREAD = 1.0
#: Least standard deviation, because a few similar calls do not prove a small spread.
LEAST_SPREAD = 0.1
#: Assumed standard deviation of the logarithms of running times of a task of which nothing is
#: known, around those of the others: a factor of about 7 on each side of an interval of 80 %.
PRIOR_SPREAD = 1.5
#: Number of standard deviations on each side of an interval of 80 %.
INTERVAL = 1.2816


@dataclass(frozen=True)
class RemainingCalls:
    """The unfinished calls of one task name.

    Attributes
    ----------
    name
        Name of the task.
    count
        Number of unfinished calls.
    mean_s
        Mean running time of a call in seconds; None if not known.
    spread
        Standard deviation of the logarithms of the running times; None if not known.
    measured
        Number of calls that were measured.
    elapsed_s
        Seconds for which the running calls have run already, together.
    """

    name: str
    count: int
    mean_s: float | None
    spread: float | None = None
    measured: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class RemainingPool:
    """The unfinished calls of one pool, and the slots for them.

    Attributes
    ----------
    tag
        Tag of the pool; empty for calls without a tag.
    slots
        Number of calls that run at once: slots of the running and of the starting workers.
    calls
        Unfinished calls by task name.
    """

    tag: str
    slots: int
    calls: Sequence[RemainingCalls]


@dataclass(frozen=True)
class PredictedRest:
    """Predicted seconds until the end, with an interval of 80 %; None where not known.

    Attributes
    ----------
    seconds, low, high
        Prediction and bounds of the interval, in seconds from now.
    reason
        Reason for the prediction, or why there is none.
    """

    seconds: float | None
    low: float | None
    high: float | None
    reason: str


def predict_rest(pools: Iterable[RemainingPool]) -> PredictedRest:
    """Predict the seconds until the last of the unfinished calls has ended.

    The work of each pool is shared evenly by its slots; the last call of each slot adds half a call
    in the mean. The pool that takes longest decides. Calls that will only be submitted later are
    not known. Tasks of which no call has ended are assumed to take about as long as the others,
    those of their pool if some are known there; the interval is wider then.
    """
    pools = list(pools)
    busy = [p for p in pools if any(calls.count for calls in p.calls)]
    if not busy:
        return PredictedRest(0.0, 0.0, 0.0, "no call is unfinished")
    unknown = [c.name for pool in busy for c in pool.calls if c.count and c.mean_s is None]
    known = [mean for pool in pools for mean in _means(pool)]
    if unknown and not known:
        return PredictedRest(None, None, None, f"no call of {unknown[0]!r} has ended yet")
    for pool in busy:
        if not pool.slots:
            return PredictedRest(None, None, None, f"pool {pool.tag!r} has no workers")
    busy = [_assumed(pool, _means(pool) or known) for pool in busy]
    rests = [(_rest(pool), pool) for pool in busy]
    (seconds, spread), last = max(rests, key=lambda rest: rest[0][0])
    count = sum(c.count for c in last.calls)
    where = f" in pool {last.tag!r}" if last.tag else ""
    calls = "1 unfinished call" if count == 1 else f"{count} unfinished calls"
    slots = "1 slot" if last.slots == 1 else f"{last.slots} slots"
    factor = math.exp(INTERVAL * spread)
    reason = f"{calls} on {slots}{where}"
    if unknown:
        others = f" and {len(unknown) - 1} other tasks" if len(unknown) > 1 else ""
        reason += f"; no call of {unknown[0]!r}{others} has ended yet: as long as others, assumed"
    return PredictedRest(seconds, seconds / factor, seconds * factor, reason)


def _means(pool: RemainingPool) -> list[float]:
    """Return the known mean running times of the tasks of a pool."""
    return [c.mean_s for c in pool.calls if c.mean_s]


def _assumed(pool: RemainingPool, means: Sequence[float]) -> RemainingPool:
    """Return a pool whose unknown running times are the geometric mean of the given ones."""
    if all(c.mean_s is not None for c in pool.calls):
        return pool
    prior = math.exp(sum(map(math.log, means)) / len(means))
    calls = [
        c if c.mean_s is not None else replace(c, mean_s=prior, spread=PRIOR_SPREAD)
        for c in pool.calls
    ]
    return replace(pool, calls=calls)


def _rest(pool: RemainingPool) -> tuple[float, float]:
    """Return the seconds until a pool's calls end, and the spread of their logarithm."""
    work = variance = 0.0
    longest = overhang = (0.0, 0.0)
    count = sum(calls.count for calls in pool.calls)
    parallel = min(pool.slots, count)
    for calls in pool.calls:
        if not calls.count:
            continue
        mean = calls.mean_s or 0.0
        spread = max(LEAST_SPREAD, ASSUMED_SPREAD if calls.spread is None else calls.spread)
        total = calls.count * mean
        work += max(total - calls.elapsed_s, 0.05 * total)
        # The squared coefficient of variation of a lognormal, for each call, and for the mean that
        # all calls share.
        relative = math.expm1(min(spread, 3.0) ** 2)
        variance += relative * mean**2 * calls.count + relative * total**2 / max(1, calls.measured)
        left = max(0.05, 1 - calls.elapsed_s / max(total, 1e-9))
        longest = max(longest, _longest_of(calls.count, mean * left, spread))
        overhang = max(overhang, _longest_of(min(parallel, calls.count), mean / 2, spread))
    shared = math.sqrt(variance) / parallel
    even, over = work / parallel, overhang if count > parallel else (0.0, 0.0)
    seconds, deviation = max((even + over[0], math.hypot(shared, over[1])), longest)
    # The last call adds its own doubt to that of the sum.
    relative = max(deviation, math.hypot(shared, longest[1])) / max(seconds, 1e-9)
    return seconds, math.sqrt(math.log1p(relative**2))


def _longest_of(count: int, mean: float, spread: float) -> tuple[float, float]:
    """Return the median and the deviation of the longest of some lognormal running times."""
    quantile = NormalDist().inv_cdf(0.5 ** (1 / count))
    longest = mean * math.exp(spread * quantile - spread**2 / 2)
    # The largest of n normal variables deviates by about 1 / sqrt(1 + 0.83 ln n).
    return longest, longest * math.expm1(spread / math.sqrt(1 + 0.83 * math.log(count)))
