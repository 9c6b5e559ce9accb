"""Shares out among pools what all of them may have together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Claim(NamedTuple):
    """What one pool asks for.

    Attributes
    ----------
    least
        Workers that are not taken from it: its minimum, and those that are busy.
    wished
        Workers that it should have.
    work_s
        Worker-seconds that it has to do.
    """

    least: int
    wished: int
    work_s: float


def shared_out(maximum: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Pool -> workers, together no more than the maximum unless the least are more already.

    Every pool gets its least, then one that has none and wishes some, then the one with the most
    work for each worker; ties go in the order of the claims.

    Parameters
    ----------
    maximum
        Workers of all pools together.
    claims
        Pool -> what it asks for.
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
