"""Seams (dependences on Dask internals) of the priorities of tasks, on the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.protocol.dask_seams.facts import Seams, accepts, has, mentions

seams = Seams("scheduler that orders calls")

_SCHEDULER = "distributed.scheduler:Scheduler"
_STATE = "distributed.scheduler:SchedulerState"
_TASK = "distributed.scheduler:TaskState"
_WORKER = "distributed.scheduler:WorkerState"


@seams.relies_on(
    mentions(f"{_SCHEDULER}._set_priorities", "priority", "generation"),
    mentions(f"{_SCHEDULER}._create_taskstate_from_graph", "_set_priorities", "update_graph"),
    mentions(f"{_STATE}._task_to_msg", "priority"),
    has(_TASK, "priority"),
    optional=True,
)
def ordering() -> str | None:
    """Return why the order of calls cannot be changed on the installed Dask; None if it can.

    Relies on ``TaskState.priority``: a tuple that Dask only compares and sends with the task. It is
    set once, as (negative priority of the user, number of the graph, place in the static order of
    the graph), before plug-ins are told of the graph and before the tasks get workers.
    """
    return next((text for name in seams.facts if (text := seams.difference(name))), None)


@seams.relies_on(
    mentions(_STATE, "queued"),
    mentions("distributed.scheduler:Scheduler.__init__", "HeapSet", "priority"),
    accepts("distributed.collections:HeapSet.add", 2),
    accepts("distributed.collections:HeapSet.clear", 1),
    has(_TASK, "priority"),
    optional=True,
)
def change_priorities(
    scheduler: Scheduler, priorities: Iterable[tuple[TaskState, tuple[float, ...]]]
) -> None:
    """Give tasks other priorities, and sort the scheduler's queue anew.

    Tasks that workers have keep their places there.

    Relies on ``SchedulerState.queued``, a heap that does not notice changed priorities.
    """
    queued: Any = scheduler.queued
    sort = False
    for task, priority in priorities:
        task.priority = priority
        sort = sort or task in queued
    if sort:
        tasks = list(queued)
        queued.clear()
        for task in tasks:
            queued.add(task)


@seams.relies_on(has(_WORKER, "executing", "long_running", "processing"), optional=True)
def waits_on_worker(task: TaskState) -> str | None:
    """Return the address of the worker that has a task and, by its last report, did not begin it.

    Relies on ``WorkerState.executing`` and ``WorkerState.long_running``.
    """
    worker = task.processing_on
    if worker is None or task in worker.executing or task in worker.long_running:
        return None
    return worker.address


@seams.relies_on(has(_WORKER, "nbytes", "memory_limit"), optional=True)
def memory_of_workers(scheduler: Scheduler) -> Iterator[tuple[int, int]]:
    """Yield the bytes of results that each worker keeps, and its memory limit; 0 for no limit.

    Relies on ``WorkerState.nbytes`` and ``WorkerState.memory_limit``.
    """
    for worker in scheduler.workers.values():
        yield worker.nbytes, worker.memory_limit or 0
