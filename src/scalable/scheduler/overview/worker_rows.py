"""Overviews of single workers, on request."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Protocol

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.model.overview import WorkerOverview
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.pools import UNTAGGED
from scalable.scheduler.counts import PoolCounts
from scalable.scheduler.departures import Departures
from scalable.scheduler.pool_facts import name_of
from scalable.scheduler.running import running_tasks

#: Largest number of workers in one answer, which blocks the event loop for a few milliseconds.
WORKERS_AT_ONCE = 250
#: Number of task names of a worker, and maximum number of characters of each.
SHOWN_TASKS, LONGEST_NAME = 3, 100


class Staffed(Protocol):
    """Cluster whose workers are shown, usually a controller."""

    scheduler: Scheduler
    counts: PoolCounts
    departures: Departures


class WorkerRows:
    """Makes overviews of the workers of one cluster, and answers readers."""

    def __init__(self, cluster: Staffed) -> None:
        self._cluster = cluster
        offer(cluster.scheduler, {Handler.WORKERS: self.answer})

    def answer(
        self, tag: str | None = None, first: int = 0, count: int = WORKERS_AT_ONCE
    ) -> dict[str, Any]:
        """Return ``workers``, ordered by pool and name, and ``total``, their number in all.
        ``tag`` selects a pool, "" the workers without a tag, None all. The first ``first`` workers
        are left out. At most ``WORKERS_AT_ONCE`` are returned.
        """
        pools = self._cluster.counts.pools()
        tagged = [(_tag_of(ws, pools), ws) for ws in self._cluster.scheduler.workers.values()]
        meant = [(own, ws) for own, ws in tagged if tag is None or own == tag]
        meant.sort(key=lambda each: (each[0], str(each[1].name)))
        chosen = islice(meant, max(0, first), max(0, first) + min(count, WORKERS_AT_ONCE))
        return {"total": len(meant), "workers": [self._row(*each).to_dict() for each in chosen]}

    def _row(self, tag: str, ws: WorkerState) -> WorkerOverview:
        running = used = 0
        names: dict[str, None] = {}
        for task, _ in running_tasks(ws):
            running += 1
            used += int((task.resource_restrictions or {}).get(tag, 1))
            names[name_of(task)[:LONGEST_NAME]] = None
        leaves = self._cluster.departures.state(ws) is not None
        paused = ws.status is Status.paused
        return WorkerOverview(
            name=str(ws.name),
            tag=tag or None,
            address=ws.address,
            state="leaving" if leaves else "paused" if paused else "running",
            running=running,
            assigned=len(ws.processing) - running,
            used_slots=used,
            slots=int(ws.resources.get(tag, ws.nthreads)),
            memory=int(ws.metrics.get("memory", 0)),
            memory_limit=ws.memory_limit,
            tasks=tuple(islice(names, SHOWN_TASKS)),
        )


def _tag_of(worker: WorkerState, pools: Mapping[str, Any]) -> str:
    return next((tag for tag in worker.resources if tag in pools), UNTAGGED)
