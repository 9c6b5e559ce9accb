"""Seams of the priorities of tasks, on the scheduler."""

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
    """Return why the order of tasks cannot be changed on the installed Dask, or None if it can.

    ``TaskState.priority`` is a tuple that Dask only compares and sends with the task. It is set
    once, as (negative priority of the user, number of the graph, position in the static order of
    the graph), before plug-ins are notified of the graph and before the tasks get workers.
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
    """Change the priorities of tasks, and sort the scheduler's queue again.

    The queue is a heap that does not notice changed priorities. Tasks that workers have keep their
    positions there.
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
    """Return the worker address of a task that, by the last report, has not started there."""
    worker = task.processing_on
    if worker is None or task in worker.executing or task in worker.long_running:
        return None
    return worker.address


@seams.relies_on(has(_WORKER, "nbytes", "memory_limit"), optional=True)
def memory_of_workers(scheduler: Scheduler) -> Iterator[tuple[int, int]]:
    """Yield the bytes of results of each worker, and its memory limit, or 0 for no limit."""
    for worker in scheduler.workers.values():
        yield worker.nbytes, worker.memory_limit or 0
