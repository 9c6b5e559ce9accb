"""The choice of the results that go when a store is too large. Pure.

The rule is GreedyDual-Size of P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms",
USENIX Symposium on Internet Technologies and Systems, 1997. Each result has a value: the *level* at
its last use, plus the seconds to compute it per byte. The results of least value go, and the level
rises to the value of the last one that went. So a result that nobody uses goes sooner or later,
whatever it cost.

Levels at earlier times are kept (:class:`Levels`), so that the time of the last use is all that has
to be noted when a result is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Largest number of levels that are kept.
KEPT = 500
#: Size in bytes of the blocks in which file systems give out space.
BLOCK = 4096


@dataclass(frozen=True)
class Candidate:
    """A result that may go.

    Attributes
    ----------
    key
        Its key.
    size
        Its size in bytes.
    cost_s
        Seconds that it took to compute.
    used
        Time of its last use in seconds since the epoch.
    """

    key: str
    size: int
    cost_s: float
    used: float


@dataclass(frozen=True)
class Levels:
    """The level, in seconds per byte, over time. It never falls.

    Attributes
    ----------
    times
        Times in seconds since the epoch, ascending.
    values
        The level from each of these times on. It is 0 before the first.
    """

    times: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    def at(self, time: float) -> float:
        """Return the level at a time."""
        position = bisect_right(self.times, time)
        return self.values[position - 1] if position else 0.0

    def raised(self, time: float, value: float) -> Levels:
        """Return the levels with a new one from a time on. The oldest are forgotten."""
        last = self.times[-1] if self.times else time
        value = max(value, self.values[-1] if self.values else 0.0)
        return Levels(
            (*self.times, max(time, last))[-KEPT:],
            (*self.values, value)[-KEPT:],
        )


def value_of(candidate: Candidate, levels: Levels) -> float:
    """Return the value of a result in seconds per byte."""
    blocks = -(-max(candidate.size, 1) // BLOCK)
    return levels.at(candidate.used) + max(candidate.cost_s, 0.0) / (blocks * BLOCK)


def chosen(
    candidates: Iterable[Candidate], limit: int, levels: Levels
) -> tuple[Sequence[Candidate], float]:
    """Return the results that have to go, those of least value first, and the level after that.

    Parameters
    ----------
    candidates
        All results.
    limit
        Largest size in bytes of those that stay.
    levels
        Levels so far.
    """
    valued = sorted(
        ((value_of(one, levels), one.used, one.key, one) for one in candidates), key=_order
    )
    excess = sum(one.size for *_, one in valued) - limit
    gone: list[Candidate] = []
    level = levels.values[-1] if levels.values else 0.0
    for value, *_, one in valued:
        if excess <= 0:
            break
        gone.append(one)
        excess -= one.size
        level = max(level, value)
    return gone, level


def _order(valued: tuple[float, float, str, Candidate]) -> tuple[float, float, str]:
    return valued[:3]
