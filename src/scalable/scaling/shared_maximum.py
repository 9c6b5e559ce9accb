"""Division of workers among pools that share a maximum. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """Number of workers that one pool needs and requests."""

    #: The larger of the pool's minimum and its busy workers, which it keeps in any case.
    least: int
    #: Desired number of workers if the common maximum allows it.
    wished: int
    #: Pending worker-seconds.
    work_s: float


def shared_out(maximum: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Return the number of workers of each pool, so that all together keep to a maximum.

    Every pool gets its ``least``, even above the maximum. More workers go one by one to pools below
    ``wished``: first to pools without workers, then to the most work per worker.
    """
    counts = {tag: claim.least for tag, claim in claims.items()}
    left = maximum - sum(counts.values())
    while left > 0:
        short = [tag for tag, claim in claims.items() if counts[tag] < claim.wished]
        if not short:
            break
        tag = max(short, key=lambda t: (counts[t] == 0, claims[t].work_s / (counts[t] or 1)))
        counts[tag] += 1
        left -= 1
    return counts
