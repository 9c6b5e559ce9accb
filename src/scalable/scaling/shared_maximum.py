"""Division of a common maximum of workers among pools. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """Claim of one pool to workers.

    Attributes
    ----------
    least
        Number of workers that the pool keeps in any case: the larger of its
        minimum and its busy workers.
    wished
        Number of workers that the pool should have.
    work_s
        Pending work of the pool in worker-seconds.
    """

    least: int
    wished: int
    work_s: float


def shared_out(maximum: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Divide a maximum among pools and return pool -> workers.

    Every pool gets its ``least``, even if their sum exceeds the maximum. Each further worker goes
    to a pool that has none and wishes some, otherwise to the pool with the most work per worker.
    Ties go in the order of the claims.

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
