"""Seams (dependences on Dask internals) of explanations: the facts that Dask knows about tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.protocol.pickle import dumps
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.facts import Seams, accepts, has, mentions
from scalable.protocol.dask_seams.scheduler import plain_value

seams = Seams("explained tasks")

_SCHEDULER = "distributed.scheduler:SchedulerState"
_TASK = "distributed.scheduler:TaskState"


@seams.relies_on(mentions(_SCHEDULER, "queued"))
def queued_tasks(scheduler: Scheduler) -> Iterable[TaskState]:
    """Return the ready tasks that wait in the scheduler because all workers are busy.

    Relies on ``SchedulerState.queued``.
    """
    return scheduler.queued


@seams.relies_on(mentions(_SCHEDULER, "unrunnable"))
def since_no_worker(scheduler: Scheduler, task: TaskState) -> float | None:
    """Return the monotonic time since which no worker can take a task, or None.

    Relies on ``SchedulerState.unrunnable``: task -> time.
    """
    since = scheduler.unrunnable.get(task)
    return None if since is None else float(since)


@seams.relies_on(has("distributed.scheduler:TaskPrefix", "duration_average"))
def usual_duration(task: TaskState) -> float | None:
    """Return the mean running time of the tasks with a task's prefix in seconds, or None.

    Relies on ``TaskPrefix.duration_average``, which is negative for an unknown time.
    """
    mean = float(task.prefix.duration_average)
    return mean if mean >= 0 else None


@seams.relies_on(has("distributed.scheduler:TaskPrefix", "states"))
def counts_of_waiting(scheduler: Scheduler) -> dict[str, int]:
    """Return task prefix -> number of its tasks that wait for other tasks.

    Relies on ``TaskPrefix.states``: state -> number of tasks.
    """
    counts = {name: p.states.get("waiting", 0) for name, p in scheduler.task_prefixes.items()}
    return {name: count for name, count in counts.items() if count}


@seams.relies_on(
    has(_TASK, "exception_text", "traceback_text", "exception_blame", "erred_on", "suspicious")
)
class FailedTask:
    """The failure of a task.

    Relies on the attributes of ``TaskState`` that hold the texts of exception and traceback, the
    failed task that is to blame, the workers on which it failed, and the number of lost workers.

    Attributes
    ----------
    error
        Text of the exception, as ``repr`` shows it.
    traceback
        Text of the traceback, or "".
    blamed
        Key of the task that failed first, or None if it is this task.
    workers
        Addresses or names of the workers on which the task failed.
    lost
        Number of workers that were lost while they ran the task.
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
    """Return key -> a worker's state of the task, and whether its slot is lent to other calls.

    Unknown keys are left out. None if the worker answers with an error. Only workers with an
    attribute ``slot_lender`` (:mod:`scalable.protocol.lending`) lend slots.

    Relies on what :func:`~scalable.protocol.dask_seams.scheduler.ask_task_states` relies on.

    Raises
    ------
    OSError
        If the worker does not answer.
    """
    answer = await scheduler.rpc(worker.address).run(function=_asking(), args=dumps((keys,)))
    if answer["status"] != "OK":
        return None
    found = plain_value(answer["result"])
    return {key: (state, lends) for key, state, lends in found}


def _asking() -> bytes:
    # A nested function is pickled by value, so the worker does not need to import this package.
    def asked(keys: list[Any], dask_worker: Any) -> list[tuple[Any, str, bool]]:
        tasks = dask_worker.state.tasks
        lender = getattr(dask_worker, "slot_lender", None)
        return [
            (key, tasks[key].state, lender is not None and bool(lender.lends(key)))
            for key in keys
            if key in tasks
        ]

    return bytes(dumps(asked))
