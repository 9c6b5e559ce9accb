"""Choice of the results to remove when a store is too large. Pure.

Implements GreedyDual-Size (P. Cao and S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USENIX
Symposium on Internet Technologies and Systems, 1997).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Largest number of levels that are kept.
KEPT = 500
#: Size in bytes of the blocks in which file systems allocate space.
BLOCK = 4096


@dataclass(frozen=True)
class Candidate:
    """Result that may be removed."""

    key: str
    #: In bytes.
    size: int
    #: Seconds that it took to compute.
    cost_s: float
    #: Time of its last use in seconds since the epoch.
    used: float


@dataclass(frozen=True)
class Levels:
    """Level in seconds per byte over time, which never falls.

    The level rises to the value of each removed result, so that unused results go sooner or later.
    With earlier levels kept, a read only has to note its time.
    """

    #: Seconds since the epoch, ascending.
    times: tuple[float, ...] = ()
    #: The level from each of these times on. It is 0 before the first.
    values: tuple[float, ...] = ()

    def at(self, time: float) -> float:
        position = bisect_right(self.times, time)
        return self.values[position - 1] if position else 0.0

    def raised(self, time: float, value: float) -> Levels:
        """Return levels with a new one from a time on, without the oldest beyond ``KEPT``."""
        last = self.times[-1] if self.times else time
        value = max(value, self.values[-1] if self.values else 0.0)
        return Levels(
            (*self.times, max(time, last))[-KEPT:],
            (*self.values, value)[-KEPT:],
        )


def value_of(candidate: Candidate, levels: Levels) -> float:
    """Return the level at a result's last use plus its computing time, in seconds per byte."""
    blocks = -(-max(candidate.size, 1) // BLOCK)
    return levels.at(candidate.used) + max(candidate.cost_s, 0.0) / (blocks * BLOCK)


def chosen(
    candidates: Iterable[Candidate], limit: int, levels: Levels
) -> tuple[Sequence[Candidate], float]:
    """Return the results to remove, the least valuable first, and the level after that.

    ``limit`` is the largest size in bytes of the results that stay.
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
