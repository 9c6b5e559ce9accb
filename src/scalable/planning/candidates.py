"""Worker counts to compare if a deadline or a budget decides. No I/O.

They do not depend on the limit. A tighter limit leaves fewer to choose from, and so never gives a
better choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from scalable.planning.frontier import SAME, Bounds, Workers
from scalable.planning.network import Network
from scalable.planning.trimming import fewest

#: Maximum number of counts that are all compared.
ALL = 2000
#: Number of times for which the fewest workers are searched if there are too many counts.
TIMES = 12
#: Number of compared counts between the cheapest and the fastest if there are too many counts.
STATES = 100


def candidates(
    network: Network, bounds: Bounds, states: Sequence[Workers], position: int
) -> list[Workers]:
    """Return the counts to compare, without some that are slower than ``states[position]``."""
    ranges = [
        range(least, min(most, max(least, network.most_useful(pool))) + 1)
        for pool, (least, most) in enumerate(zip(bounds.least, bounds.most, strict=True))
    ]
    if math.prod(map(len, ranges)) <= ALL:
        return list(_allowed(ranges, bounds))
    searched = [
        fewest(network, bounds, [states[i]], network.finish_s(states[i]) * (1 + SAME))
        for i in _places(states, TIMES, position)
    ]
    return [*searched, *(states[i] for i in _places(states, STATES, position))]


def _places(states: Sequence[Workers], number: int, first: int) -> list[int]:
    """Return evenly spaced indexes from ``first`` on, and the last index."""
    step = max(1, len(states) // number)
    return [i for i in (*range(0, len(states) - 1, step), len(states) - 1) if i >= first]


def _allowed(ranges: Sequence[range], bounds: Bounds) -> Iterator[Workers]:
    for counts in itertools.product(*ranges):
        if bounds.least_total <= sum(counts) and (
            bounds.total is None or sum(counts) <= bounds.total
        ):
            yield counts
