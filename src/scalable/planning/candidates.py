"""Worker counts to compare where a deadline or a budget decides. No I/O.

Few counts are all compared, so that the choice among them is exact. Of many counts, those on the
way from the cheapest to the fastest are compared, and the fewest workers for the times of some of
them. The compared counts do not depend on the limits: a tighter limit leaves fewer of them to
choose from, and so never gives a better choice.
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
#: Number of times for which the fewest workers are searched where counts are many.
TIMES = 12
#: Number of compared counts on the way from the cheapest to the fastest, where counts are many.
STATES = 100


def candidates(
    network: Network, bounds: Bounds, states: Sequence[Workers], position: int
) -> list[Workers]:
    """Return worker counts to compare; those that are slower than a state may be left out.

    Parameters
    ----------
    network, bounds
        Stages of the planned work, and limits of the counts with the cost of workers.
    states
        Counts from the cheapest to the fastest, as :func:`.frontier.trace` returns them.
    position
        Index of the first state within the time limit.
    """
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
    """Return evenly spaced indexes of states from ``first`` on, and the last index."""
    step = max(1, len(states) // number)
    return [i for i in (*range(0, len(states) - 1, step), len(states) - 1) if i >= first]


def _allowed(ranges: Sequence[range], bounds: Bounds) -> Iterator[Workers]:
    for counts in itertools.product(*ranges):
        if bounds.least_total <= sum(counts) and (
            bounds.total is None or sum(counts) <= bounds.total
        ):
            yield counts
