"""Sentences about tasks that no worker can run. Such tasks fail after some seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scalable.protocol.pools import known_tags, shown


def no_pool(tag: str, tags: Iterable[str], *, managed: bool) -> str:
    """State that a pool is unknown and, unless ``managed``, that no manager is attached."""
    nobody = "" if managed else "; no manager is attached to start workers"
    return f"no pool {tag!r}; known tags: {known_tags(dict.fromkeys(tags))}{nobody}"


def too_many_slots(tag: str, slots: int) -> str:
    """State that a task needs more slots than one worker of a pool has."""
    return f"it needs more slots than a worker of pool {tag!r} has: {slots}"


def apart(tags: Iterable[str]) -> str:
    """State that a task needs slots of several pools on one worker."""
    return f"it needs slots of {' and '.join(map(shown, tags))}, which no worker offers together"


def unable(workers: Iterable[str], asked: Mapping[str, float]) -> str:
    """State that the workers to which a task is restricted lack its resources."""
    return (
        f"it is restricted to {', '.join(sorted(workers))}, without enough of what it needs: "
        f"{dict(asked)}"
    )


def worker_gone(worker: str) -> str:
    """State that tasks are restricted to a worker that has left."""
    return f"worker {worker}, which has left"


def not_offered(resource: str) -> str:
    """State that tasks request a resource that no worker offers."""
    return f"resource {resource!r}, which no worker offers"


def degraded(tag: str, reason: str) -> str:
    """State that the managers no longer start workers for a pool."""
    return f"{shown(tag)} is degraded: {reason}"


# Sentences about the managers of a cluster --------------------------------------------------------


#: No manager is attached to the cluster.
NOBODY = "no manager is attached"
#: The managers that the cluster starts with have not attached yet.
NOT_YET = "its managers are not attached yet"


def words_of_lost(managers: Iterable[str]) -> str:
    """State that managers no longer send heartbeats."""
    return f"manager {', '.join(map(repr, managers))} no longer reports"
