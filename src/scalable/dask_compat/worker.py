"""Seams of Dask's worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distributed import Worker
from distributed.core import clean_exception
from distributed.threadpoolexecutor import secede as secede_thread
from distributed.worker import get_worker, thread_state  # type: ignore[attr-defined]
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    SecedeEvent,
    StateMachineEvent,
    TaskState,
    UnpauseEvent,
)

from scalable.dask_compat.facts import Seams, accepts, contains, has, mentions
from scalable.protocol.described_failures import error_text

seams = Seams("worker")

_WORKER = "distributed.worker:Worker"
_STATE = "distributed.worker_state_machine:WorkerState"
_WAITING = frozenset({"waiting", "ready", "constrained"})


# The task of a thread -----------------------------------------------------------------------------


@seams.relies_on(
    mentions("distributed.worker:secede", "thread_state", "key"),
    mentions("distributed.worker:_run_task", "set_thread_state", "key"),
    accepts("distributed.worker:get_worker", 0),
)
def current_call() -> tuple[Worker, Any] | None:
    """Return the worker and the key of this thread's task, or None outside a task."""
    # Checked for each task, so that a missing key must not cost an exception.
    key = thread_state.__dict__.get("key")
    if key is None:
        return None
    try:
        return get_worker(), key
    except ValueError:
        return None


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "active_threads", "active_threads_lock"),
    mentions(f"{_WORKER}.execute", "active_threads", "active_threads_lock"),
)
def act_on_thread_of(worker: Worker, key: Any, act: Callable[[int], None]) -> int | None:
    """Call ``act`` with the id of the thread that runs a task, and return the id.

    The thread cannot start another task while ``act`` runs. If no thread runs the task, ``act`` is
    not called and the result is None.
    """
    with worker.active_threads_lock:
        thread = next((t for t, active in worker.active_threads.items() if active == key), None)
        if thread is not None:
            act(thread)
        return thread


@seams.relies_on(*seams.facts["act_on_thread_of"])
def cpu_seconds(worker: Worker, key: Any) -> float | None:
    """Return the CPU seconds of the thread that runs a task, or None if they are unknown."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    seconds: list[float] = []

    def read(thread: int) -> None:
        seconds.append(time.clock_gettime(time.pthread_getcpuclockid(thread)))

    act_on_thread_of(worker, key, read)
    return seconds[0] if seconds else None


@seams.relies_on(mentions(f"{_WORKER}.__init__", "active_threads"))
def runs_in(worker: Worker, thread: int, key: Any) -> bool:
    """Return whether the thread with this id runs the task with this key."""
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
    """Return a worker's state of a task, or None for an unknown task."""
    return worker.state.tasks.get(key)


@seams.relies_on(*seams.facts["task_of"])
def is_waiting(worker: Worker, key: Any) -> bool:
    """Return whether a worker has a task that it has not started."""
    task = task_of(worker, key)
    return task is not None and task.state in _WAITING


@seams.relies_on(
    mentions(f"{_STATE}.__init__", "executing", "long_running"),
    mentions(f"{_STATE}._execute_done_common", "executing", "long_running"),
)
def running_tasks(worker: Worker) -> list[TaskState]:
    """Return all running tasks: cancelled ones too, and those not counted against threads."""
    return [*worker.state.executing, *worker.state.long_running]


@seams.relies_on(*seams.facts["running_tasks"])
def is_running(worker: Worker, task: TaskState) -> bool:
    """Return whether a task runs, even if cancelled or not counted against the threads."""
    return task in worker.state.executing or task in worker.state.long_running


@seams.relies_on(
    mentions(f"{_STATE}._next_ready_task", "ready", "constrained", "peek", "priority"),
    mentions("distributed.scheduler:Scheduler._set_priorities", "generation"),
    has("distributed.worker_state_machine:TaskState", "priority"),
)
def nested_call_is_next(worker: Worker) -> bool:
    """Return whether a worker's next task was made by a task: its second priority is negative."""
    heaps = (worker.state.ready, worker.state.constrained)
    tasks = [heap.peek() for heap in heaps if heap]
    return any(task.priority is not None and task.priority[1] < 0 for task in tasks)


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "remove-worker"),
    accepts(f"{_WORKER}._handle_remove_worker", 1, "worker", "stimulus_id"),
)
def forget_workers(worker: Worker, left: bytes) -> None:
    """Remove other workers, whose addresses are the lines of ``left``."""
    stimulus = f"scalable-left-{time.time()}"
    for address in left.decode().splitlines():
        worker.stream_handlers["remove-worker"](worker=address, stimulus_id=stimulus)


@seams.relies_on(
    has("distributed.worker_state_machine:TaskState", "startstops"),
    mentions(f"{_STATE}._get_task_finished_msg", "startstops"),
)
def timings_of(worker: Worker, key: Any) -> list[Any]:
    """Return the task's timings that Dask will send, to which callers may append entries."""
    task = task_of(worker, key)
    return [] if task is None else task.startstops


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "batched_stream", "stream_handlers"),
    accepts("distributed.batched:BatchedSend.send", 2),
)
def send_to_scheduler(worker: Worker, message: dict[str, Any]) -> None:
    """Send a message to the scheduler. Runs in the worker's event loop."""
    worker.batched_stream.send(message)


@seams.relies_on(
    mentions(f"{_WORKER}.__init__", "stream_handlers"),
    mentions("distributed.core:Server.handle_stream", "stream_handlers"),
)
def offer_on_stream(worker: Worker, operation: str, handler: Callable[..., None]) -> None:
    """Register a handler for an operation in the scheduler's messages, unless it has one."""
    worker.stream_handlers.setdefault(operation, handler)


@seams.relies_on(
    accepts(
        "distributed.worker_state_machine:ExecuteFailureEvent.from_exception",
        2,
        *("key", "run_id", "start", "stop", "stimulus_id"),
    ),
    mentions("distributed.core:error_message", "to_serialize"),
    mentions("distributed.protocol.serialize:Serialize.__init__", "data"),
    accepts("distributed.core:clean_exception", 1),
)
def failure_for_clients(
    event: StateMachineEvent, explain: Callable[[BaseException], BaseException | None]
) -> StateMachineEvent:
    """Return a task's failure with an error that clients can raise, and other events unchanged.

    Event loops, coroutines and generators stop themselves at errors that are not an ``Exception``:
    clients would not get the outcome. Such an error becomes a RuntimeError that names it. The
    ``repr`` of an error does not always have its message: that of an OSError omits the file, and
    the message of a KeyError has quotes. ``exception_text`` then gets the message. ``explain``
    returns the error to show instead of another, or None.
    """
    if not isinstance(event, ExecuteFailureEvent):
        return event
    _, error, _ = clean_exception(event.exception.data)
    if error is None:
        return event
    told = explain(error)
    if told is None and isinstance(error, Exception):
        # Instead of an error that cannot be pickled, Dask sends an Exception.
        if type(error) is not Exception or event.exception_text.startswith("Exception("):
            event.exception_text = error_text(error)
        return event
    changed = ExecuteFailureEvent.from_exception(
        told or RuntimeError(f"the call ended with {error!r}"),
        key=event.key,
        run_id=event.run_id,
        start=event.start,
        stop=event.stop,
        stimulus_id=event.stimulus_id,
    )
    changed.traceback, changed.traceback_text = event.traceback, event.traceback_text
    return changed


@seams.relies_on(mentions(f"{_WORKER}.close", "extensions", "close"))
def close_with_worker(worker: Worker, name: str, extension: Any) -> None:
    """Run the coroutine ``close`` of an object when a worker closes.

    It runs after the worker has stopped reporting finished tasks, and before it waits for the
    threads of tasks.
    """
    worker.extensions[name] = extension


# Slots --------------------------------------------------------------------------------------------


@seams.relies_on(
    mentions(f"{_STATE}.__init__", "available_resources"),
    mentions(f"{_STATE}._resource_restrictions_satisfied", "available_resources"),
    has("distributed.worker_state_machine:TaskState", "resource_restrictions"),
)
def free_resources(worker: Worker) -> dict[str, float]:
    """Return the free resources of a worker. Changes of the dictionary take effect in Dask."""
    return worker.state.available_resources


@seams.relies_on(*seams.facts["free_resources"])
def change_free_resources(worker: Worker, task: TaskState, sign: int) -> None:
    """Add (sign 1) or subtract (-1) a task's resources from the worker's free resources."""
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
    """Add to the number of threads that run tasks. A negative number subtracts."""
    executor: Any = worker.executors["default"]
    executor._max_workers += threads  # noqa: SLF001
    if threads > 0 and not executor._work_queue.empty():  # noqa: SLF001
        # A task that was submitted while every thread was busy would wait for the next submission.
        executor._adjust_thread_count()  # noqa: SLF001


@seams.relies_on(
    *seams.facts["add_threads"],
    mentions("distributed.threadpoolexecutor:_worker", "proceed"),
    mentions(
        "distributed.threadpoolexecutor:secede",
        *("proceed", "_threads", "remove", "_adjust_thread_count"),
    ),
)
def end_idle_threads(worker: Worker) -> None:
    """Stop idle threads of a worker in excess of the number that run tasks."""
    executor: Any = worker.executors["default"]
    if executor._shutdown:  # noqa: SLF001
        return

    def leave() -> None:
        # Before a thread runs this, the number of threads that are needed may have grown.
        if len(executor._threads) > executor._max_workers:  # noqa: SLF001
            secede_thread()

    for _ in range(len(executor._threads) - executor._max_workers):  # noqa: SLF001
        executor.submit(leave)


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
    mentions(f"{_WORKER}.execute", "start_time"),
    contains(f"{_STATE}._TRANSITIONS_TABLE", ("cancelled", "long-running")),
    *seams.facts["running_tasks"],
    mentions(f"{_STATE}._handle_unpause", "running", "_ensure_computing"),
    accepts(f"{_WORKER}.handle_stimulus", 2),
    mentions(f"{_STATE}.__init__", "running"),
)
def stop_counting(worker: Worker, task: TaskState) -> None:
    """Stop counting a running task against the threads, so that other tasks may start.

    ``SecedeEvent`` moves the task to ``long-running``. If it is there already, ``UnpauseEvent``
    makes the worker look for tasks to start.
    """
    now = time.time()
    stamp = f"call-waits-{now}"
    if task in worker.state.executing:
        seconds = now - (task.start_time or now)
        event: Any = SecedeEvent(key=task.key, compute_duration=seconds, stimulus_id=stamp)
    elif worker.state.running:
        event = UnpauseEvent(stimulus_id=stamp)
    else:
        return
    worker.handle_stimulus(event)
