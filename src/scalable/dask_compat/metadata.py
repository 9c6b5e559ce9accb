"""Seam of the facts that a scheduler keeps for its workers."""

from __future__ import annotations

from typing import Any

from scalable.dask_compat.facts import Seams, accepts, mentions

seams = Seams("scheduler with metadata")

_SCHEDULER = "distributed.scheduler:Scheduler"


@seams.relies_on(
    mentions(f"{_SCHEDULER}.__init__", "set_metadata", "get_metadata"),
    accepts(f"{_SCHEDULER}.get_metadata", 1, "keys", "default"),
    accepts(f"{_SCHEDULER}.set_metadata", 1, "keys", "value"),
)
async def fact_of_scheduler(scheduler: Any, key: str) -> Any:
    """Return a fact of a scheduler (its ``rpc`` object), as set by ``set_fact``, or None."""
    return await scheduler.get_metadata(keys=[key], default=None)


def set_fact(scheduler: Any, key: str, value: Any) -> None:
    """Set a fact on a scheduler in this process. See :func:`fact_of_scheduler`."""
    scheduler.set_metadata(keys=[key], value=value)
