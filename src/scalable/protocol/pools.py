"""Names and counts of pools, as every process writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.errors import ClusterError

#: The pool of workers without a tag.
UNTAGGED = ""


def check_count(tag: str, count: Any) -> None:
    """Raise ClusterError where this is no number of workers."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ClusterError(f"{shown(tag)} cannot have {count!r} workers")


def shown(tag: str) -> str:
    """A pool in a message."""
    return f"pool {tag!r}" if tag else "the pool without a tag"


def known_tags(pools: Mapping[str, Any]) -> str:
    """Known tags for a message."""
    return ", ".join(sorted(repr(tag) for tag in pools if tag)) or "none"
