"""Seams (dependences on Dask internals) of Dask's worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distributed import Worker
from distributed.worker import get_worker, thread_state  # type: ignore[attr-defined]
from distributed.worker_state_machine import SecedeEvent, TaskState, UnpauseEvent

from scalable.protocol.dask_seams.facts import Seams, accepts, contains, has, mentions

seams = Seams("worker")

_WORKER = "distributed.worker:Worker"
_STATE = "distributed.worker_state_machine:WorkerState"
_WAITING = frozenset({"waiting", "ready", "constrained"})
_RUNNING = frozenset({"executing", "long-running"})


# The call of a thread -----------------------------------------------------------------------------


@seams.relies_on(
    mentions("distributed.worker:secede", "thread_state", "key", "start_time"),
    mentions("distributed.worker:_run_task", "set_thread_state", "start_time", "key"),
    accepts("distributed.worker:get_worker", 0),
)
def current_call() -> tuple[Worker, Any, float] | None:
    """Return the worker, the key and the start (seconds since 1970) of the call in this thread.

    None outside a call. Relies on ``distributed.worker.thread_state``.
    """
    key = getattr(thread_state, "key", None)
    if key is None:
        return None
    try:
        return get_worker(), key, thread_state.start_time
    except ValueError:
        return None


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "active_threads", "active_threads_lock"),
    mentions(f"{_WORKER}.execute", "active_threads", "active_threads_lock"),
)
def act_on_thread_of(worker: Worker, key: Any, act: Callable[[int], None]) -> int | None:
    """Call ``act`` with the id of the thread that runs a task; return the id of the thread.

    The thread cannot begin another task while ``act`` runs. If no thread runs the task, ``act`` is
    not called and the result is None.

    Relies on ``Worker.active_threads``, thread id -> key of the task, and on its lock.
    """
    with worker.active_threads_lock:
        thread = next((t for t, active in worker.active_threads.items() if active == key), None)
        if thread is not None:
            act(thread)
        return thread


@seams.relies_on(mentions(f"{_WORKER}.__init__", "active_threads"))
def runs_in(worker: Worker, thread: int, key: Any) -> bool:
    """Return whether the thread with this id runs the task with this key.

    Relies on ``Worker.active_threads``.
    """
    return bool(worker.active_threads.get(thread) == key)


# Tasks --------------------------------------------------------------------------------------------


@seams.relies_on(
    mentions(f"{_STATE}.__init__", "tasks"),
    has("distributed.worker_state_machine:TaskState", "state"),
    contains(
        f"{_STATE}._TRANSITIONS_TABLE",
        ("ready", "executing"),
        ("constrained", "executing"),
        ("executing", "long-running"),
        ("waiting", "ready"),
    ),
)
def task_of(worker: Worker, key: Any) -> TaskState | None:
    """Return a worker's state of a task; None if the worker does not know the task.

    Relies on ``WorkerState.tasks``.
    """
    return worker.state.tasks.get(key)


@seams.relies_on(*seams.facts["task_of"])
def is_waiting(worker: Worker, key: Any) -> bool:
    """Return whether a worker has been given a task and has not begun to run it.

    Relies on the names of task states.
    """
    task = task_of(worker, key)
    return task is not None and task.state in _WAITING


@seams.relies_on(*seams.facts["task_of"])
def is_running(task: TaskState) -> bool:
    """Return whether a task runs, even if it no longer counts against the worker's threads.

    Relies on the names of task states.
    """
    return task.state in _RUNNING


@seams.relies_on(
    has("distributed.worker_state_machine:TaskState", "startstops"),
    mentions(f"{_STATE}._get_task_finished_msg", "startstops"),
)
def timings_of(worker: Worker, key: Any) -> list[Any]:
    """Return the list of a task's timings, which Dask sends to the scheduler when the task ends.

    Callers may append entries. Relies on ``TaskState.startstops``: entries with ``action``,
    ``start`` and ``stop``.
    """
    task = task_of(worker, key)
    return [] if task is None else task.startstops


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "batched_stream", "stream_handlers"),
    accepts("distributed.batched:BatchedSend.send", 2),
)
def send_to_scheduler(worker: Worker, message: dict[str, Any]) -> None:
    """Send a message to the scheduler; to be called in the worker's event loop.

    Relies on ``Worker.batched_stream``.
    """
    worker.batched_stream.send(message)


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "stream_handlers"),
    mentions("distributed.core:Server.handle_stream", "stream_handlers"),
)
def offer_on_stream(worker: Worker, operation: str, handler: Callable[..., None]) -> None:
    """Register a handler for an operation in the scheduler's messages, unless there is one.

    Relies on ``Server.stream_handlers``.
    """
    worker.stream_handlers.setdefault(operation, handler)


# Slots --------------------------------------------------------------------------------------------


@seams.relies_on(
    mentions(f"{_STATE}.__init__", "available_resources"),
    mentions(f"{_STATE}._resource_restrictions_satisfied", "available_resources"),
    has("distributed.worker_state_machine:TaskState", "resource_restrictions"),
)
def free_resources(worker: Worker) -> dict[str, float]:
    """Return the free resources of a worker; changes of the dictionary take effect in Dask.

    Relies on ``WorkerState.available_resources``.
    """
    return worker.state.available_resources


@seams.relies_on(*seams.facts["free_resources"])
def change_free_resources(worker: Worker, task: TaskState, sign: int) -> None:
    """Add a task's resources to the worker's free resources (sign 1) or subtract them (-1).

    Relies on ``WorkerState.available_resources`` and ``TaskState.resource_restrictions``.
    """
    free = free_resources(worker)
    for name, amount in (task.resource_restrictions or {}).items():
        free[name] += sign * amount


@seams.relies_on(
    mentions(
        "distributed.threadpoolexecutor:ThreadPoolExecutor._adjust_thread_count", "_max_workers"
    ),
    mentions(f"{_WORKER}.__init__", "executors"),
)
def add_threads(worker: Worker, threads: int) -> None:
    """Add to the number of threads that run tasks; a negative number subtracts.

    Relies on ``_max_workers``, ``_work_queue`` and ``_adjust_thread_count`` of the executor
    ``default``; Dask reads the first when a task is submitted.
    """
    executor: Any = worker.executors["default"]
    executor._max_workers += threads  # noqa: SLF001
    if threads > 0 and not executor._work_queue.empty():  # noqa: SLF001
        # A call that was submitted while every thread was taken would wait for the next submission.
        executor._adjust_thread_count()  # noqa: SLF001


@seams.relies_on(
    accepts(
        "distributed.worker_state_machine:SecedeEvent.__init__",
        1,
        "key",
        "compute_duration",
        "stimulus_id",
    ),
    accepts("distributed.worker_state_machine:UnpauseEvent.__init__", 1, "stimulus_id"),
    mentions(f"{_STATE}._handle_secede", "long-running"),
    mentions(f"{_STATE}._handle_unpause", "running", "_ensure_computing"),
    accepts(f"{_WORKER}.handle_stimulus", 2),
    mentions(f"{_STATE}.__init__", "running"),
)
def stop_counting(worker: Worker, task: TaskState, seconds: float) -> None:
    """Stop counting a running task against the worker's threads, so that other tasks may begin.

    Relies on events of the worker's state machine. ``SecedeEvent`` moves the task to
    ``long-running``. If the task is ``long-running`` already, ``UnpauseEvent`` makes the worker
    look for tasks to begin.

    Parameters
    ----------
    worker, task
        Worker and its task.
    seconds
        Seconds for which the task has run.
    """
    stamp = f"call-waits-{time.time()}"
    if task.state == "executing":
        event: Any = SecedeEvent(key=task.key, compute_duration=seconds, stimulus_id=stamp)
    elif worker.state.running:
        event = UnpauseEvent(stimulus_id=stamp)
    else:
        return
    worker.handle_stimulus(event)
