"""Prediction of when all known tasks finish, from sums over task names. This module does no I/O.

The cost of a prediction does not depend on the number of tasks, so it can run repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

#: Assumed standard deviation of the logarithms of durations if fewer than two were measured.
ASSUMED_SPREAD = 1.0
#: Least standard deviation, because a few similar tasks do not prove a small spread.
LEAST_SPREAD = 0.1
#: Assumed standard deviation of the logarithms of an unknown name's durations around those of the
#: others. It makes each side of an 80 % interval a factor of about 7.
PRIOR_SPREAD = 1.5
#: Number of standard deviations on each side of an interval of 80 %.
INTERVAL = 1.2816


@dataclass(frozen=True)
class RemainingCalls:
    """Unfinished tasks of one task name."""

    name: str
    count: int
    #: Mean duration of a task, if known.
    mean_s: float | None
    #: Standard deviation of the logarithms of the durations, if known.
    spread: float | None = None
    #: Number of measured tasks.
    measured: int = 0
    #: Seconds that the running tasks have run, together.
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class RemainingPool:
    """Unfinished tasks of one pool, and the slots for them."""

    #: Tag of the pool, empty for tasks without a tag.
    tag: str
    #: Number of slots of the running and the starting workers.
    slots: int
    calls: Sequence[RemainingCalls]


@dataclass(frozen=True)
class PredictedRest:
    """Predicted seconds until the end, with an 80 % interval, or None if unknown."""

    seconds: float | None
    low: float | None
    high: float | None
    #: Reason for the prediction, or why there is none.
    reason: str


def predict_rest(pools: Iterable[RemainingPool]) -> PredictedRest:
    """Predict the seconds until the last unfinished task has finished.
    Tasks submitted later are not included. Names without a finished task are assumed to take as
    long as others, preferably of their pool, or longer if they already run for longer.
    """
    pools = list(pools)
    busy = [p for p in pools if any(calls.count for calls in p.calls)]
    if not busy:
        return PredictedRest(0.0, 0.0, 0.0, "no task is unfinished")
    unknown = [c.name for pool in busy for c in pool.calls if c.count and c.mean_s is None]
    known = [mean for pool in pools for mean in _means(pool)]
    if unknown and not known:
        return PredictedRest(None, None, None, f"no task of {unknown[0]!r} has finished yet")
    for pool in busy:
        if not pool.slots:
            return PredictedRest(None, None, None, f"pool {pool.tag!r} has no workers")
    busy = [_assumed(pool, _means(pool) or known) for pool in busy]
    rests = [(_rest(pool), pool) for pool in busy]
    (seconds, spread), last = max(rests, key=lambda rest: rest[0][0])
    count = sum(c.count for c in last.calls)
    where = f" in pool {last.tag!r}" if last.tag else ""
    calls = "1 unfinished task" if count == 1 else f"{count} unfinished tasks"
    slots = "1 slot" if last.slots == 1 else f"{last.slots} slots"
    factor = math.exp(INTERVAL * spread)
    reason = f"{calls} on {slots}{where}"
    if unknown:
        others = f" and {len(unknown) - 1} other tasks" if len(unknown) > 1 else ""
        reason += f"; no task of {unknown[0]!r}{others} has finished yet: "
        reason += "assumed to take as long as others"
    return PredictedRest(seconds, seconds / factor, seconds * factor, reason)


def _means(pool: RemainingPool) -> list[float]:
    return [c.mean_s for c in pool.calls if c.mean_s]


def _assumed(pool: RemainingPool, means: Sequence[float]) -> RemainingPool:
    """Replace unknown durations by the geometric mean of the given ones, or by what has passed."""
    prior = math.exp(sum(map(math.log, means)) / max(1, len(means)))
    calls = []
    for known in pool.calls:
        # A task whose duration is unknown probably runs for as long again as it has run.
        ran_s = known.elapsed_s / max(1, min(pool.slots, known.count))
        assumed = replace(known, mean_s=max(prior, 2 * ran_s), spread=PRIOR_SPREAD)
        calls.append(assumed if known.mean_s is None else known)
    return replace(pool, calls=calls)


def _rest(pool: RemainingPool) -> tuple[float, float]:
    """Return the seconds until a pool's tasks finish, and the spread of their logarithm."""
    # The slots of a pool share its work evenly. The last task of each adds half a task on average.
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
        # The squared coefficient of variation of a lognormal, for each task, and for the mean that
        # all tasks share.
        relative = math.expm1(min(spread, 3.0) ** 2)
        variance += relative * mean**2 * calls.count + relative * total**2 / max(1, calls.measured)
        left = max(0.05, 1 - calls.elapsed_s / max(total, 1e-9))
        longest = max(longest, _longest_of(calls.count, mean * left, spread))
        overhang = max(overhang, _longest_of(min(parallel, calls.count), mean / 2, spread))
    shared = math.sqrt(variance) / parallel
    even, over = work / parallel, overhang if count > parallel else (0.0, 0.0)
    seconds, deviation = max((even + over[0], math.hypot(shared, over[1])), longest)
    # The last task adds its own doubt to that of the sum.
    relative = max(deviation, math.hypot(shared, longest[1])) / max(seconds, 1e-9)
    return seconds, math.sqrt(math.log1p(relative**2))


def _longest_of(count: int, mean: float, spread: float) -> tuple[float, float]:
    """Return the median and the deviation of the longest of some lognormal durations."""
    quantile = NormalDist().inv_cdf(0.5 ** (1 / count))
    longest = mean * math.exp(spread * quantile - spread**2 / 2)
    # The largest of n normal variables deviates by about 1 / sqrt(1 + 0.83 ln n).
    return longest, longest * math.expm1(spread / math.sqrt(1 + 0.83 * math.log(count)))
