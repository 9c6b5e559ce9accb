"""Seams of a worker that fetches the arguments of its tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from distributed import Worker
from distributed.core import clean_exception
from distributed.worker_state_machine import (
    GatherDepFailureEvent,
    GatherDepSuccessEvent,
    StateMachineEvent,
    TaskErredMsg,
    TaskState,
)

from scalable.dask_compat.facts import Seams, accepts, has, mentions

seams = Seams("worker that fetches arguments")

_WORKER = "distributed.worker:Worker"
_MACHINE = "distributed.worker_state_machine"


@seams.relies_on(
    has(f"{_MACHINE}:TaskState", "waiters", "run_spec", "run_id", "startstops"),
    mentions(f"{_MACHINE}:WorkerState._transition_released_waiting", "waiters"),
)
def waiting_calls(worker: Worker, keys: Iterable[Any]) -> list[TaskState]:
    """Return the tasks of a worker that wait for any of these keys."""
    tasks = worker.state.tasks
    found = {call.key: call for key in keys if key in tasks for call in tasks[key].waiters}
    return list(found.values())


@seams.relies_on(
    mentions(f"{_WORKER}.gather_dep", "GatherDepFailureEvent", "from_exception"),
    has(f"{_MACHINE}:GatherDepFailureEvent", "exception", "traceback", "exception_text"),
    accepts("distributed.core:clean_exception", 1),
)
def unreadable(event: StateMachineEvent) -> Exception | None:
    """Return a fetch's unpickling error, or None for success and for network errors."""
    if not isinstance(event, GatherDepFailureEvent):
        return None
    _, error, _ = clean_exception(event.exception.data)
    return error if isinstance(error, Exception) else RuntimeError(event.exception_text)


@seams.relies_on(has(f"{_MACHINE}:GatherDepSuccessEvent", "data"))
def fetched(event: StateMachineEvent) -> dict[Any, Any] | None:
    """Return the data of a fetch that succeeded, or None for other fetches."""
    return event.data if isinstance(event, GatherDepSuccessEvent) else None


@seams.relies_on(
    mentions(f"{_MACHINE}:WorkerState._handle_gather_dep_success", "data", "missing-dep"),
    mentions(f"{_MACHINE}:WorkerState._gather_dep_done_common", "total_nbytes", "in_flight_tasks"),
)
def with_data(event: StateMachineEvent, data: dict[Any, Any]) -> StateMachineEvent:
    """Return a successful fetch's event with other data. Keys without data are missing."""
    assert isinstance(event, GatherDepSuccessEvent)
    return replace(event, data=data)


@seams.relies_on(
    mentions("distributed.core:ConnectionPool.reuse", "available", "semaphore", "occupied"),
    mentions("distributed.core:ConnectionPool.remove", "available", "semaphore", "release"),
    mentions("distributed.worker:get_data_from_worker", "OK", "reuse"),
)
def drop_idle_connections(worker: Worker, address: str) -> None:
    """Close the idle connections to another worker.

    After data that could not be unpickled, Dask reuses the connection though the other worker still
    waits for an "OK" on it: the next request there would fail.
    """
    pool = worker.rpc
    for connection in list(pool.available.pop(address, ())):
        connection.abort()
        pool.semaphore.release()


@seams.relies_on(
    has(f"{_MACHINE}:TaskErredMsg", "key", "run_id", "exception", "traceback", "startstops"),
    accepts(
        f"{_MACHINE}:GatherDepFailureEvent.from_exception",
        2,
        *("worker", "total_nbytes", "stimulus_id"),
    ),
    mentions("distributed.scheduler:Scheduler.stimulus_task_erred", "processing", "run_id"),
)
def fail_waiting_call(worker: Worker, call: TaskState, error: Exception) -> None:
    """Report a task as failed to the scheduler, which then makes the worker release it."""
    stimulus = f"unreadable-argument-{time.time()}"
    failure = GatherDepFailureEvent.from_exception(
        error, worker=worker.address, total_nbytes=0, stimulus_id=stimulus
    )
    message = TaskErredMsg(
        key=call.key,
        run_id=call.run_id,
        exception=failure.exception,
        traceback=failure.traceback,
        exception_text=failure.exception_text,
        traceback_text=failure.traceback_text,
        thread=None,
        startstops=call.startstops,
        stimulus_id=stimulus,
    )
    worker.batched_send(message.to_dict())
