"""Seams (dependences on Dask internals) of Dask's shuffles between workers.

In a shuffle (also a merge or a rechunk), Dask assigns each output to a worker before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from scalable.protocol.dask_seams.facts import Seams, contains, declares, mentions

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
    """Let shuffles assign their outputs to workers that can run them; repeating it is harmless.

    Dask chooses among all workers, whatever resources the tasks need. An output that is assigned to
    a worker without these resources never runs.

    Relies on ``ShuffleSchedulerPlugin._calculate_worker_for``, which chooses among the workers in
    ``worker_restrictions`` of the shuffle's barrier task, and on ``SchedulerState.valid_workers``.
    """
    shuffle_mender()(dask_scheduler=scheduler)


def shuffle_mender() -> Callable[..., None]:
    """Return a function for ``Client.run_on_scheduler`` that does the same to another scheduler.

    Relies on what :func:`keep_shuffles_in_pools` relies on.
    """

    # A nested function is pickled by value, so the scheduler does not need to import this package.
    def mend(dask_scheduler: Any) -> None:
        from distributed.shuffle._core import barrier_key
        from distributed.shuffle._exceptions import P2PIllegalStateError

        plugin = dask_scheduler.extensions.get("shuffle")
        if plugin is None or getattr(plugin, "scalable_in_pools", False):
            return
        choose = plugin._calculate_worker_for  # noqa: SLF001

        def able(tasks: list[Any]) -> set[str] | None:
            found: set[str] | None = None
            for task in tasks:
                workers = dask_scheduler.valid_workers(task)
                if workers is not None:
                    addresses = {worker.address for worker in workers}
                    found = addresses if found is None else found & addresses
            return found

        def within_pool(spec: Any) -> Any:
            barrier = dask_scheduler.tasks[barrier_key(spec.id)]
            tasks = [barrier, *barrier.dependents]
            if not any(task.resource_restrictions for task in tasks):
                return choose(spec)
            workers = able(tasks)
            if not workers:
                raise P2PIllegalStateError(
                    f"no running worker can run all outputs of the shuffle {spec.id}: they need "
                    f"{[task.resource_restrictions for task in tasks[:2]]}"
                )
            restrictions = barrier.worker_restrictions
            barrier.worker_restrictions = workers
            try:
                return choose(spec)
            finally:
                barrier.worker_restrictions = restrictions

        plugin._calculate_worker_for = within_pool  # noqa: SLF001
        plugin.scalable_in_pools = True

    return mend
