"""Seams of work stealing between the workers of a pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState
from distributed.stealing import WorkStealing

from scalable.dask_compat.facts import Seams, accepts, declares, has, mentions

seams = Seams("scheduler that evens out pools")

_STEALING = "distributed.stealing:WorkStealing"
#: Maximum seconds between two checks. With Dask's one second an idle worker waits for half a second
#: on average while others have a queue.
INTERVAL_S = 0.1
#: Maximum number of idle workers that are compared for one task.
COMPARED = 20


class _Part:
    """A scheduler that appears to have only the given idle and loaded workers."""

    def __init__(
        self, scheduler: Scheduler, idle: Iterable[WorkerState], loaded: Iterable[WorkerState]
    ) -> None:
        self._scheduler = scheduler
        self.idle = {worker.address: worker for worker in idle}
        others = {worker.address: worker for worker in loaded}
        self.workers = {**self.idle, **others}
        self.saturated = scheduler.saturated & set(others.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


@seams.relies_on(
    declares(f"{_STEALING}.balance", "self"),
    mentions(f"{_STEALING}.start", "_callback_time"),
    mentions(f"{_STEALING}.balance", "scheduler", "idle", "saturated", "workers", "_get_thief"),
    declares(
        f"{_STEALING}._get_thief",
        "self", "scheduler", "ts", "potential_thieves", "occupancies",
    ),
    accepts(f"{_STEALING}.stealing_objective", 3, "occupancies"),
    mentions("distributed.scheduler:SchedulerState", "idle", "saturated", "resources", "workers"),
    has("distributed.scheduler:WorkerState", "processing", "nthreads", "resources"),
    has("distributed.scheduler:TaskState", "resource_restrictions", "worker_restrictions"),
    has("distributed.scheduler:TaskState", "host_restrictions"),
    optional=True,
)  # fmt: skip
class PoolStealing(WorkStealing):
    """Dask's work stealing, applied to each pool separately, and then to all workers.

    Dask takes tasks from workers with much work compared with all others, or else from the ten with
    the most work. If one pool has longer queues than another, none of them may be in the second
    pool: its idle workers then wait while tasks are queued in the same pool. ``balance`` reads the
    workers from ``self.scheduler``.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._callback_time = min(self._callback_time, INTERVAL_S)
        self._idle_with: Mapping[str, set[WorkerState]] = {}

    def balance(self) -> None:
        scheduler = self.scheduler
        loaded = [ws for ws in scheduler.running if len(ws.processing) > ws.nthreads]
        if not loaded:
            return
        idle = [ws for ws in scheduler.running if _takes_more(scheduler, ws)]
        self._idle_with, loaded_with = _by_tag(idle), _by_tag(loaded)
        try:
            for tag in self._idle_with.keys() & loaded_with.keys():
                self._balance(scheduler, self._idle_with[tag], loaded_with[tag])
            self._balance(scheduler, idle, loaded)
        finally:
            self.scheduler = scheduler

    def _balance(
        self, scheduler: Scheduler, idle: Iterable[WorkerState], loaded: Iterable[WorkerState]
    ) -> None:
        part: Any = _Part(scheduler, idle, loaded)
        self.scheduler = part
        super().balance()

    def _get_thief(
        self,
        scheduler: Any,
        ts: TaskState,
        potential_thieves: set[WorkerState],
        *,
        occupancies: dict[WorkerState, float],
    ) -> WorkerState | None:
        """Return an idle worker or None. Avoids Dask's set of all workers with the tag."""
        tags = ts.resource_restrictions
        if not tags or len(tags) > 1 or ts.worker_restrictions or ts.host_restrictions:
            return super()._get_thief(scheduler, ts, potential_thieves, occupancies=occupancies)
        ((tag, slots),) = tags.items()
        able = (
            worker
            for worker in potential_thieves & self._idle_with.get(tag, set())
            if worker.resources[tag] >= slots
        )
        objective = partial(self.stealing_objective, ts, occupancies=occupancies)
        return min(islice(able, COMPARED), key=objective, default=None)


def _takes_more(scheduler: Scheduler, worker: WorkerState) -> bool:
    """Return whether a worker has a free thread, or little work compared with others."""
    count = len(worker.processing)
    short = count == worker.nthreads and worker.address in scheduler.idle
    return count < worker.nthreads or short


def _by_tag(workers: Iterable[WorkerState]) -> Mapping[str, set[WorkerState]]:
    found: dict[str, set[WorkerState]] = defaultdict(set)
    for worker in workers:
        for tag in worker.resources:
            found[tag].add(worker)
    return found


def pool_stealing() -> str | None:
    """Return why ``PoolStealing`` cannot run on the installed Dask, or None if it can."""
    return seams.difference(PoolStealing.__name__)
