"""Sentences about calls that no worker can run; such calls fail after some seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scalable.protocol.pools import known_tags, shown


def no_pool(tag: str, tags: Iterable[str], *, managed: bool) -> str:
    """Return that no pool has a tag.

    Parameters
    ----------
    tag, tags
        The tag, and the tags of all pools.
    managed
        Whether a manager is attached to the cluster.
    """
    nobody = "" if managed else "; no manager is attached to start workers"
    return f"no pool {tag!r}; known tags: {known_tags(dict.fromkeys(tags))}{nobody}"


def too_many_slots(tag: str, slots: int) -> str:
    """Return that a call needs more slots than the ``slots`` of one worker of a pool."""
    return f"it needs more slots than a worker of pool {tag!r} has: {slots}"


def apart(tags: Iterable[str]) -> str:
    """Return that a call needs slots of several pools on one worker."""
    return f"it needs slots of {' and '.join(map(shown, tags))}, which no worker offers together"


def unable(workers: Iterable[str], asked: Mapping[str, float]) -> str:
    """Return that the workers to which a call is restricted lack what it asks for."""
    return (
        f"it is restricted to {', '.join(sorted(workers))}, without enough of what it needs: "
        f"{dict(asked)}"
    )


def worker_gone(worker: str) -> str:
    """Return that calls are restricted to a worker which has left."""
    return f"worker {worker}, which has left"


def not_offered(resource: str) -> str:
    """Return that calls ask for a resource which no worker offers."""
    return f"resource {resource!r}, which no worker offers"


def degraded(tag: str, reason: str) -> str:
    """Return that the managers have given up starting workers for a pool."""
    return f"{shown(tag)} is degraded: {reason}"
