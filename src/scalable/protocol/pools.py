"""Checks and messages about the names and worker counts of pools. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scalable.errors import ClusterError

#: Tag that stands for the pool of workers without a tag.
UNTAGGED = ""


def wanted_counts(
    n: int | str | Mapping[str, int], count: int | None, only_pool: Callable[[], str]
) -> dict[str, int]:
    """Return worker counts by tag from the arguments of ``scale``.

    These are ``scale(3)``, ``scale(tag, 3)`` or ``scale({tag: 3})``, in total numbers.
    ``only_pool`` returns the tag for a count without a tag. Raises ClusterError if a count is
    missing or negative, or not an integer.
    """
    if isinstance(n, Mapping):
        counts = dict(n)
    elif isinstance(n, str):
        if count is None:
            raise ClusterError(
                f"scale({n!r}) has no number of workers: write, for example, scale({n!r}, 3)"
            )
        counts = {n: count}
    else:
        counts = {only_pool(): n}
    for tag, number in counts.items():
        check_count(tag, number)
    return counts


def only_tag(tags: Iterable[str], verb: str = "scale(tag, n)") -> str:
    """Return the tag of a cluster's only pool. Raises ClusterError if it has none or several."""
    known = sorted(tags)
    if len(known) != 1:
        words = ", ".join(map(repr, known)) or "no pool"
        raise ClusterError(f"no pool was named, and this cluster has {words}: write {verb}")
    return known[0]


def check_tag(tag: str, *known: Mapping[str, Any]) -> None:
    """Raise ClusterError if no mapping in ``known`` has ``tag`` as a key."""
    if not any(tag in pools for pools in known):
        raise ClusterError(f"no pool {tag!r}; known pools: {known_tags(known[0])}")


def check_count(tag: str, count: Any) -> None:
    """Raise ClusterError if a pool's worker count is negative or not an integer."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ClusterError(f"{shown(tag)} cannot have {count!r} workers")


def shown(tag: str) -> str:
    """Return how messages name a pool, such as ``pool 'a'``."""
    return f"pool {tag!r}" if tag else "the pool without a tag"


def known_tags(pools: Mapping[str, Any]) -> str:
    """Return the sorted tags for a message, or ``none``."""
    return ", ".join(sorted(repr(tag) for tag in pools if tag)) or "none"
