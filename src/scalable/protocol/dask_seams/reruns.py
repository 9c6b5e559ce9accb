"""Seams (dependences on Dask internals) of Dask's scheduler: tasks that run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.facts import Seams, has, mentions

seams = Seams("scheduler")

_SCHEDULER = "distributed.scheduler:Scheduler"
_WORKER = "distributed.scheduler:WorkerState"
_TASK = "distributed.scheduler:TaskState"


@seams.relies_on(
    mentions("distributed.worker:Worker.execute", "task-erred-"),
    mentions(f"{_SCHEDULER}.stimulus_task_erred", "retries", "waiting"),
)
def failed_try(details: Mapping[str, Any]) -> bool:
    """Return whether a task left its worker because it failed; for a task that has not erred.

    Then it has further tries. Relies on the beginning of the stimulus that a worker sends with the
    failure of a task.
    """
    return str(details.get("stimulus_id", "")).startswith("task-erred-")


@seams.relies_on(
    has(_WORKER, "executing", "long_running", "nthreads"),
    has(_TASK, "priority"),
    mentions(f"{_SCHEDULER}.heartbeat_worker", "executing"),
)
def begun_on(worker: WorkerState, tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return those of the tasks assigned to a lost worker that it had begun.

    These are the tasks that its last heartbeat named, and for its other threads the tasks that
    were next by priority: a task that began after the heartbeat is not known otherwise.

    Relies on ``WorkerState.executing`` and ``long_running``, and on ``TaskState.priority``.
    """
    assigned = sorted(tasks, key=lambda task: task.priority or ())
    told = [t for t in assigned if t in worker.executing or t in worker.long_running]
    others = [task for task in assigned if task not in told]
    return told + others[: max(0, worker.nthreads - len(told))]
