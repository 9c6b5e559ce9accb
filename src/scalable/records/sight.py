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
    """Observe a cluster's scheduler, or the user's process. None if no process is known.
    ``services`` returns the process or job of each program. It is called only if needed.
    """
    identity: Mapping[str, Any] | None = record.creator if record.embedded else scheduler
    if not identity:
        started = services().get(names.SCHEDULER, {})
        identity = started if "pid" in started else None
    if not identity:
        # No scheduler was started. Only a restart of the machine proves that none will be.
        return Sight(alive=None, another=True) if rebooted(record.creator) else None
    another = rebooted(identity) or number_taken(identity)
    return Sight(is_alive(identity), another)
