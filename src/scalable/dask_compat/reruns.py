"""Seams of Dask's scheduler for tasks that run again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.facts import Seams, accepts, contains, declares, has, mentions

seams = Seams("scheduler")

_SCHEDULER = "distributed.scheduler:Scheduler"
_WORKER = "distributed.scheduler:WorkerState"
_TASK = "distributed.scheduler:TaskState"
_TRANSITIONS = "distributed.scheduler:SchedulerState._TRANSITIONS_TABLE"


@seams.relies_on(
    mentions("distributed.worker:Worker.execute", "task-erred-"),
    mentions(f"{_SCHEDULER}.stimulus_task_erred", "retries", "waiting"),
)
def failed_try(details: Mapping[str, Any]) -> bool:
    """Return whether a task that has not erred left its worker because an attempt failed."""
    return str(details.get("stimulus_id", "")).startswith("task-erred-")


@seams.relies_on(
    declares(
        f"{_SCHEDULER}.stimulus_task_erred",
        *("self", "worker", "stimulus_id", "key", "run_id", "kwargs"),
    ),
    mentions(f"{_SCHEDULER}.stimulus_task_erred", "retries", "run_id", "waiting", "erred"),
    mentions(f"{_SCHEDULER}.handle_task_erred", "stimulus_task_erred", "key", "stimulus_id"),
    has(_TASK, "retries", "run_id"),
)
class RetryingScheduler(Scheduler):
    """A scheduler that decides itself which failed tasks run again."""

    def tries_again(self, task: TaskState, worker: str, details: Mapping[str, Any]) -> bool | None:
        """Return whether a failed task runs again, or None to leave it to Dask."""
        del task, worker, details
        return None

    def stimulus_task_erred(
        self, worker: str, stimulus_id: str, key: Any, run_id: int, **kwargs: Any
    ) -> Any:
        task = self.tasks.get(key)
        if task is not None and task.state == "processing" and task.run_id == run_id:
            again = self.tries_again(task, worker, kwargs)
            if again is not None:
                task.retries = int(again)
        return super().stimulus_task_erred(worker, stimulus_id, key, run_id, **kwargs)


@seams.relies_on(
    *seams.facts["failed_try"],
    accepts(f"{_SCHEDULER}.transitions", 3),
    contains(_TRANSITIONS, ("processing", "released"), ("queued", "released"),
             ("no-worker", "released"), ("released", "waiting")),
)  # fmt: skip
def take_back(scheduler: Scheduler, task: TaskState, *, failed: bool) -> None:
    """Release a task from its worker or queue, and find a worker for it again.

    ``failed`` marks a failed attempt: see :func:`failed_try`. A task in another state does not
    change.
    """
    if task.state in ("processing", "queued", "no-worker"):
        stimulus = f"{'task-erred' if failed else 'scalable-taken-back'}-{time.time()}"
        scheduler.transitions({task.key: "waiting"}, stimulus)


@seams.relies_on(
    accepts(f"{_SCHEDULER}.transitions", 3),
    contains(_TRANSITIONS, ("no-worker", "processing")),
)
def run_now(scheduler: Scheduler, task: TaskState) -> None:
    """Find a worker for a task that waits for one. Other tasks do not change."""
    if task.state == "no-worker":
        scheduler.transitions({task.key: "processing"}, f"scalable-tried-again-{time.time()}")


@seams.relies_on(
    has(_WORKER, "executing", "long_running", "nthreads"),
    has(_TASK, "priority"),
    mentions(f"{_SCHEDULER}.heartbeat_worker", "executing"),
)
def begun_on(worker: WorkerState, tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return those of the tasks assigned to a lost worker that it had started.

    These are the tasks in its last heartbeat, and for its other threads the next tasks by priority:
    a task that started after the heartbeat cannot be detected otherwise.
    """
    assigned = sorted(tasks, key=lambda task: task.priority or ())
    told = [t for t in assigned if t in worker.executing or t in worker.long_running]
    others = [task for task in assigned if task not in told]
    return told + others[: max(0, worker.nthreads - len(told))]
