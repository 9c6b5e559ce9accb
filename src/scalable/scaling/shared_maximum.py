"""Division of workers among pools that share a maximum. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """Number of workers that one pool needs and wishes.

    Attributes
    ----------
    least
        Number of workers that the pool keeps in any case: the larger of its
        minimum and its busy workers.
    wished
        Number of workers that the pool should have if the common maximum allows it.
    work_s
        Pending work of the pool in worker-seconds.
    """

    least: int
    wished: int
    work_s: float


def shared_out(maximum: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Return pool -> number of workers, so that all pools together keep to a maximum.

    Every pool gets its ``least``, even if the sum exceeds the maximum. Further workers go, one by
    one, only to pools below their ``wished``: first to pools without workers, then to the pool with
    the most work per worker. Of equal pools the first in ``claims`` gets the worker.

    Parameters
    ----------
    maximum
        Maximum number of workers of all pools together.
    claims
        Pool -> its claim.
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
