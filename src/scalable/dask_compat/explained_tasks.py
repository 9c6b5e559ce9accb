"""Seams of explanations: facts that Dask has about tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.protocol.pickle import dumps
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.facts import Seams, accepts, has, mentions
from scalable.dask_compat.scheduler import plain_value

seams = Seams("explained tasks")

_SCHEDULER = "distributed.scheduler:SchedulerState"
_TASK = "distributed.scheduler:TaskState"


@seams.relies_on(mentions(_SCHEDULER, "queued"))
def queued_tasks(scheduler: Scheduler) -> Iterable[TaskState]:
    """Return the ready tasks that wait in the scheduler because all workers are busy."""
    return scheduler.queued


@seams.relies_on(mentions(_SCHEDULER, "unrunnable"))
def since_no_worker(scheduler: Scheduler, task: TaskState) -> float | None:
    """Return the monotonic time since which no worker can take a task, or None."""
    since = scheduler.unrunnable.get(task)
    return None if since is None else float(since)


@seams.relies_on(has("distributed.scheduler:TaskPrefix", "duration_average"))
def usual_duration(task: TaskState) -> float | None:
    """Return the mean running seconds of tasks with a task's prefix, or None if unknown."""
    mean = float(task.prefix.duration_average)
    return mean if mean >= 0 else None


@seams.relies_on(has("distributed.scheduler:TaskPrefix", "states"))
def counts_of_waiting(scheduler: Scheduler) -> dict[str, int]:
    """Map task prefixes to numbers of tasks that wait for other tasks, without zeros."""
    counts = {name: p.states.get("waiting", 0) for name, p in scheduler.task_prefixes.items()}
    return {name: count for name, count in counts.items() if count}


@seams.relies_on(
    has(_TASK, "exception_text", "traceback_text", "exception_blame", "erred_on", "suspicious")
)
class FailedTask:
    """The failure of a task.

    ``error`` is the exception's ``repr``. ``traceback`` may be empty. ``blamed`` is the key of the
    task that failed first, or None if it is this one. ``workers`` are those on which it failed, and
    ``lost`` is the number of workers that were lost while they ran it.
    """

    def __init__(self, task: TaskState) -> None:
        cause = task.exception_blame or task
        self.error = str(cause.exception_text or "")
        self.traceback = str(cause.traceback_text or "")
        self.blamed: Any = None if cause is task else cause.key
        self.workers = sorted(map(str, cause.erred_on or ()))
        self.lost = int(cause.suspicious)


@seams.relies_on(
    accepts("distributed.worker:Worker.run", 2, "function", "args"),
    mentions("distributed.worker:run", "status", "result", "OK", "dask_worker"),
    has("distributed.worker_state_machine:TaskState", "state"),
    mentions("distributed.worker_state_machine:WorkerState", "tasks"),
)
async def ask_about_tasks(
    scheduler: Scheduler, worker: WorkerState, keys: list[Any]
) -> dict[Any, tuple[str, bool]] | None:
    """Map known keys to (a worker's task state, whether the slot is lent).

    Returns None if the worker answers with an error, and raises OSError if it does not answer.
    """
    answer = await scheduler.rpc(worker.address).run(function=_asking(), args=dumps((keys,)))
    if answer["status"] != "OK":
        return None
    found = plain_value(answer["result"])
    return {key: (state, lends) for key, state, lends in found}


def _asking() -> bytes:
    # A nested function is pickled by value, so that the worker need not import this package.
    def asked(keys: list[Any], dask_worker: Any) -> list[tuple[Any, str, bool]]:
        tasks = dask_worker.state.tasks
        lender = getattr(dask_worker, "slot_lender", None)
        return [
            (key, tasks[key].state, lender is not None and bool(lender.lends(key)))
            for key in keys
            if key in tasks
        ]

    return bytes(dumps(asked))
