"""Seams (dependences on Dask internals) of the workers that are connected to a scheduler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.dask_seams.facts import has, mentions
from scalable.protocol.dask_seams.scheduler import seams

_WORKER = "distributed.scheduler:WorkerState"


@seams.relies_on(mentions("distributed.scheduler:Scheduler.__init__", "workers", "SortedDict"))
def connected_workers(scheduler: Scheduler) -> Collection[WorkerState]:
    """Return the connected workers, in no order.

    Relies on ``Scheduler.workers``, a sorted dictionary. To ask it for its values takes seven times
    as long, and several parts of the scheduler look at all workers each second.
    """
    return dict.values(scheduler.workers)


@seams.relies_on(
    has(_WORKER, "extra", "executing", "processing", "last_seen", "occupancy", "resources"),
    mentions("distributed.worker:Worker", "startup_information"),
)
def told_at_start(worker: WorkerState, key: str) -> Any:
    """Return a value that a worker sent when it connected; None if the key is missing.

    Relies on ``Worker.startup_information``, whose values arrive in ``WorkerState.extra``.
    """
    return worker.extra.get(key)


@seams.relies_on(*seams.facts["told_at_start"])
def workers_by_what_they_told(scheduler: Scheduler, key: str) -> list[tuple[WorkerState, Any]]:
    """Return each connected worker with the value that :func:`told_at_start` returns."""
    return [(worker, worker.extra.get(key)) for worker in dict.values(scheduler.workers)]
