"""Seams of Dask's shuffles between workers.

In a shuffle (including a merge or a rechunk), Dask assigns each output to a worker before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from scalable.dask_compat.facts import Seams, contains, declares, mentions

seams = Seams("scheduler of shuffles")

_PLUGIN = "distributed.shuffle._scheduler_plugin:ShuffleSchedulerPlugin"


@seams.relies_on(
    contains("distributed.scheduler:DEFAULT_EXTENSIONS", "shuffle"),
    declares(f"{_PLUGIN}._calculate_worker_for", "self", "spec"),
    mentions(
        f"{_PLUGIN}._calculate_worker_for",
        "barrier_key",
        "worker_restrictions",
        "dependents",
        "workers",
    ),
    mentions(f"{_PLUGIN}._create", "_calculate_worker_for"),
    declares("distributed.scheduler:SchedulerState.valid_workers", "self", "ts"),
)
def keep_shuffles_in_pools(scheduler: Scheduler) -> None:
    """Make shuffles assign outputs to workers that can run them. Idempotent.

    Dask chooses among all workers, whatever resources the tasks need. An output that is assigned to
    a worker without these resources never runs.
    """
    shuffle_mender()(dask_scheduler=scheduler)


def shuffle_mender() -> Callable[..., None]:
    """Return a function for ``Client.run_on_scheduler`` with the same effect there."""

    # A nested function is pickled by value, so that the scheduler need not import this package.
    def mend(dask_scheduler: Any) -> None:
        from distributed.shuffle._core import barrier_key
        from distributed.shuffle._exceptions import P2PIllegalStateError

        plugin = dask_scheduler.extensions.get("shuffle")
        if plugin is None or getattr(plugin, "scalable_in_pools", False):
            return
        choose = plugin._calculate_worker_for  # noqa: SLF001

        def able(tasks: list[Any]) -> set[str]:
            found = {worker.address for worker in dask_scheduler.running}
            for task in tasks:
                workers = dask_scheduler.valid_workers(task)
                if workers is not None:
                    found &= {worker.address for worker in workers}
            return found - plugin.scalable_leaving or found

        def within_pool(spec: Any) -> Any:
            barrier = dask_scheduler.tasks[barrier_key(spec.id)]
            tasks = [barrier, *barrier.dependents]
            workers = able(tasks)
            if not workers and any(task.resource_restrictions for task in tasks):
                raise P2PIllegalStateError(
                    f"no running worker can run all outputs of the shuffle {spec.id}: they need "
                    f"{[task.resource_restrictions for task in tasks[:2]]}"
                )
            restrictions = barrier.worker_restrictions
            barrier.worker_restrictions = workers or restrictions
            try:
                return choose(spec)
            finally:
                barrier.worker_restrictions = restrictions

        plugin.scalable_leaving = set()
        plugin._calculate_worker_for = within_pool  # noqa: SLF001
        plugin.scalable_in_pools = True

    return mend


@seams.relies_on(
    contains(
        "distributed.shuffle._core:SchedulerShuffleState.__annotations__", "participating_workers"
    ),
    mentions(_PLUGIN, "active_shuffles"),
    mentions(f"{_PLUGIN}.remove_worker", "participating_workers", "_restart_shuffle"),
)
class ShufflesOf:
    """The shuffles in which a worker participates, which would restart if it left now."""

    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self._plugin: Any = scheduler.extensions.get("shuffle")
        self._address = address

    def running(self) -> bool:
        """Return whether the worker participates in an unfinished shuffle."""
        active = getattr(self._plugin, "active_shuffles", {})
        return any(self._address in each.participating_workers for each in active.values())

    def avoid(self, avoided: bool) -> None:
        """Give the worker no outputs of later shuffles if another worker can take them."""
        leaving: set[str] = getattr(self._plugin, "scalable_leaving", set())
        (leaving.add if avoided else leaving.discard)(self._address)
