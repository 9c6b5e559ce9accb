"""Parts of a decision about a pool's workers: tried counts, bounds and reasons. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalable.scaling.pool_load import Load
from scalable.scaling.pool_policy import PoolView

#: Weight of an outlook and the load in it, for all outlooks.
Loads = Sequence[tuple[float, Load]]
#: Ratio between a tried number of added workers and the next one.
STEP_RATIO = 1.25
#: Ratio of the largest to the smallest possible work beyond which nothing is known about it.
NOTHING_KNOWN = 200.0


def work_of(loads: Loads) -> str:
    """Return a phrase for the known work: a number, or a range if durations are in doubt."""
    works = sorted(load.work_s for _, load in loads)
    if works[-1] <= 1.1 * works[0]:
        return f"{works[-1]:.0f} worker-seconds of known work"
    return f"{works[0]:.0f} to {works[-1]:.0f} worker-seconds of work: its lengths are not known"


def unbilled(view: PoolView, expected_s: Sequence[float]) -> bool:
    """Return True if starting workers are certainly not billed yet."""
    # Start-up times vary, so billing may start in the second half of a start.
    return min(expected_s) > view.startup_s / 2 + view.billed_startup_s


def steps(low: int, high: int) -> list[int]:
    """Return counts from ``low`` to ``high``, both included, at growing distances."""
    counts, count, step = [low], low, 1.0
    while (count := low + round(step)) < high:
        counts.append(count)
        step = max(step + 1, STEP_RATIO * step)
    return [*counts, high]


def first_try(view: PoolView, loads: Loads, most: int) -> int:
    """Return the largest count to try, at most ``most``."""
    # While nothing is known about a graph's work and most of a start is billed, a few workers
    # measure durations first. The geometric mean of 1 and ``most`` limits the factor of error both
    # ways.
    works = [load.work_s for _, load in loads]
    unknown = view.graph and max(works) > NOTHING_KNOWN * min(works)
    if not unknown or view.billed_startup_s <= view.startup_s / 2:
        return most
    return math.ceil(math.sqrt(most))


def bounded(view: PoolView, count: int, reason: str) -> tuple[int, str]:
    """Return a count within the bounds of a pool, and its reason."""
    high = view.maximum if view.maximum is not None else max(count, view.busy, view.minimum)
    low = max(view.minimum, view.busy)
    bounded = min(max(count, low), high)
    if bounded != count:
        reason = f"{reason}; {count} is outside the bounds {low} .. {high}"
    return bounded, reason
