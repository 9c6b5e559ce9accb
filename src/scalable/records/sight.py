"""Observation of the process that a cluster on this machine depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scalable.liveness import is_alive, number_taken, rebooted
from scalable.records.states import Sight
from scalable.spec import ClusterRecord, names


def sight_of(
    record: ClusterRecord,
    scheduler: Mapping[str, Any] | None,
    services: Callable[[], Mapping[str, Mapping[str, Any]]],
) -> Sight | None:
    """Return what is seen of a cluster's scheduler, or of its user's process; None for nothing.

    Parameters
    ----------
    record
        Record of the cluster.
    scheduler
        Process and address that the scheduler has written, or None.
    services
        Function that returns program -> its process or job.
    """
    identity: Mapping[str, Any] | None = record.creator if record.embedded else scheduler
    if not identity:
        started = services().get(names.SCHEDULER, {})
        identity = started if "pid" in started else None
    if not identity:
        # No scheduler was started; only a restart of the machine proves that none will be.
        return Sight(alive=None, another=True) if rebooted(record.creator) else None
    another = rebooted(identity) or number_taken(identity)
    return Sight(is_alive(identity), another)
