"""Seams of Dask's worker."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from distributed import Worker, threadpoolexecutor
from distributed.comm.core import Comm
from distributed.core import clean_exception
from distributed.protocol.serialize import deserialize, serialize
from distributed.utils import ensure_memoryview, nbytes, offload
from distributed.worker import get_worker, thread_state  # type: ignore[attr-defined]
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    GatherDepFailureEvent,
    SecedeEvent,
    StateMachineEvent,
    TaskErredMsg,
    TaskState,
    UnpauseEvent,
)

from scalable.dask_compat.comm import SharingTCP
from scalable.protocol import shared_memory
from scalable.protocol.failures import error_text
from scalable.protocol.messages import Pickled
from scalable.protocol.shared_memory import LEAST

logger = logging.getLogger("scalable.worker")

_WAITING = frozenset({"waiting", "ready", "constrained"})


# The task of a thread -----------------------------------------------------------------------------


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


def act_on_thread_of(worker: Worker, key: Any, act: Callable[[int], None]) -> int | None:
    """Call ``act`` with the id of the thread that runs a task. Return the id, or None."""
    with worker.active_threads_lock:
        thread = next((t for t, active in worker.active_threads.items() if active == key), None)
        if thread is not None:
            act(thread)
        return thread


def cpu_seconds(worker: Worker, key: Any) -> float | None:
    """Return the CPU seconds of the thread that runs a task, or None if unknown."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    seconds: list[float] = []

    def read(thread: int) -> None:
        seconds.append(time.clock_gettime(time.pthread_getcpuclockid(thread)))

    act_on_thread_of(worker, key, read)
    return seconds[0] if seconds else None


def runs_in(worker: Worker, thread: int, key: Any) -> bool:
    """Return whether the given thread runs the given task."""
    return bool(worker.active_threads.get(thread) == key)


# Threads and interrupts ---------------------------------------------------------------------------

_locks: dict[int, Any] = {}


def uninterrupted(thread: int) -> Any:
    """Return a thread's lock, held while it is interrupted and while it must not be: an interrupt
    could leave it among those that run tasks. One lock for all would meet Dask's in another order.
    """
    return _locks.setdefault(thread, threading.RLock())


@cache
def guard_threads() -> None:
    """Make tasks change the set of threads that run tasks without interrupts. Idempotent."""
    secede = _guard(threadpoolexecutor, "secede")
    for module in ("distributed", "distributed.client", "distributed.worker_client"):
        import_module(module).rejoin = _rejoin  # type: ignore[attr-defined]
    import_module("distributed.worker_client").secede = secede  # type: ignore[attr-defined]
    import_module("distributed.worker").tpe_secede = secede  # type: ignore[attr-defined]
    threadpoolexecutor.rejoin = _rejoin
    if sys.version_info < (3, 12):
        # A new thread has the id of the thread that starts it until it first runs. An interrupt
        # would end it, and the task would wait forever for its start.
        _guard(threading.Thread, "start")
    os.register_at_fork(after_in_child=_locks.clear)


def _guard(owner: Any, name: str) -> Callable[..., Any]:
    """Replace a function by one without interrupts, and return it."""
    function = getattr(owner, name)

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with uninterrupted(threading.get_ident()):
            return function(*args, **kwargs)

    setattr(owner, name, guarded)
    return guarded


def _rejoin() -> None:
    """Wait until another thread leaves those that run tasks, as Dask's function."""
    state, thread = threadpoolexecutor.thread_state, threading.current_thread()
    executor, joined = state.executor, threading.Event()
    lock, waiting = uninterrupted(threading.get_ident()), executor._rejoin_list  # noqa: SLF001
    try:
        with lock:
            with executor._rejoin_lock:  # noqa: SLF001
                waiting.append((thread, joined))
            executor.submit(int)  # an idle thread then leaves
        joined.wait()
    finally:
        with lock:
            try:
                sum(())  # an interrupt that came before the lock is raised at the next call
            finally:
                with executor._rejoin_lock:  # noqa: SLF001
                    waiting[:] = [each for each in waiting if each[0] is not thread]
                    state.proceed = thread in executor._threads  # noqa: SLF001


# Tasks --------------------------------------------------------------------------------------------


def task_of(worker: Worker, key: Any) -> TaskState | None:
    """Return a worker's state of a task, or None if the task is unknown."""
    return worker.state.tasks.get(key)


def is_waiting(worker: Worker, key: Any) -> bool:
    """Return whether a worker has a task but has not started it."""
    task = task_of(worker, key)
    return task is not None and task.state in _WAITING


def running_state(worker: Worker, key: Any) -> str | None:
    """Return a task's state if the worker counts it as running, which may be ``cancelled``."""
    task = task_of(worker, key)
    return task.state if task is not None and task in worker.state.executing else None


def nested_call_is_next(worker: Worker) -> bool:
    """Return whether a worker's next task is nested: its second priority is then negative."""
    heaps = (worker.state.ready, worker.state.constrained)
    tasks = [heap.peek() for heap in heaps if heap]
    return any(task.priority is not None and task.priority[1] < 0 for task in tasks)


def forget_workers(worker: Worker, left: bytes) -> None:
    """Make a worker drop other workers. ``left`` has their addresses, one per line."""
    stimulus = f"scalable-left-{time.time()}"
    for address in left.decode().splitlines():
        worker.stream_handlers["remove-worker"](worker=address, stimulus_id=stimulus)


def timings_of(worker: Worker, key: Any) -> list[Any]:
    """Return the timings that Dask will send for a task. Callers may append entries."""
    task = task_of(worker, key)
    return [] if task is None else task.startstops


def send_to_scheduler(worker: Worker, message: dict[str, Any]) -> None:
    """Send a message to the scheduler. Runs in the worker's event loop."""
    worker.batched_stream.send(message)


def offer_on_stream(worker: Worker, operation: str, handler: Callable[..., None]) -> None:
    """Register a handler for an operation on the scheduler's stream, unless there is one."""
    worker.stream_handlers.setdefault(operation, handler)


def failure_for_clients(event: StateMachineEvent) -> StateMachineEvent:
    """Return a failure event with an error that clients can raise. Other events are unchanged.
    An error that is not an ``Exception`` becomes a RuntimeError, as it would not reach clients.
    """
    if not isinstance(event, ExecuteFailureEvent):
        return event
    _, error, _ = clean_exception(event.exception.data)
    if error is None:
        return event
    if isinstance(error, Exception):
        # Instead of an error that cannot be pickled, Dask sends an Exception.
        if type(error) is not Exception or event.exception_text.startswith("Exception("):
            event.exception_text = error_text(error)
        return event
    changed = ExecuteFailureEvent.from_exception(
        RuntimeError(f"the task raised {error!r}"),
        key=event.key,
        run_id=event.run_id,
        start=event.start,
        stop=event.stop,
        stimulus_id=event.stimulus_id,
    )
    changed.traceback, changed.traceback_text = event.traceback, event.traceback_text
    return changed


# Slots --------------------------------------------------------------------------------------------


def change_free_resources(worker: Worker, task: TaskState, sign: int) -> None:
    """Add a task's resources to the worker's free ones (``sign`` 1), or subtract them (-1)."""
    free = worker.state.available_resources
    for name, amount in (task.resource_restrictions or {}).items():
        free[name] += sign * amount


def add_threads(worker: Worker, threads: int) -> None:
    """Add to the number of threads that run tasks. A negative number subtracts."""
    executor: Any = worker.executors["default"]
    executor._max_workers += threads  # noqa: SLF001
    if threads > 0 and not executor._work_queue.empty():  # noqa: SLF001
        # A task that was submitted while every thread was busy would wait for the next submission.
        executor._adjust_thread_count()  # noqa: SLF001


def end_idle_threads(worker: Worker) -> None:
    """Stop a worker's idle threads beyond its number of threads."""
    executor: Any = worker.executors["default"]
    if executor._shutdown:  # noqa: SLF001
        return

    def leave() -> None:
        # Before a thread runs this, the number of threads that are needed may have grown.
        if len(executor._threads) > executor._max_workers:  # noqa: SLF001
            threadpoolexecutor.secede()

    for _ in range(len(executor._threads) - executor._max_workers):  # noqa: SLF001
        executor.submit(leave)


def stop_counting(worker: Worker, task: TaskState) -> None:
    """Make a running task secede from the thread count, so that other tasks may start."""
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


# Arguments of tasks -------------------------------------------------------------------------------


def waiting_calls(worker: Worker, keys: Iterable[Any]) -> list[TaskState]:
    """Return a worker's tasks that wait for any of these keys."""
    tasks = worker.state.tasks
    found = {call.key: call for key in keys if key in tasks for call in tasks[key].waiters}
    return list(found.values())


def unreadable(event: StateMachineEvent) -> Exception | None:
    """Return the unpickling error of a fetch, or None for success and network errors."""
    if not isinstance(event, GatherDepFailureEvent):
        return None
    _, error, _ = clean_exception(event.exception.data)
    return error if isinstance(error, Exception) else RuntimeError(event.exception_text)


def drop_idle_connections(worker: Worker, address: str) -> None:
    """Close idle connections to a worker whose data could not be unpickled.
    The worker waits on one of them for an "OK", so the next request there would fail.
    """
    pool = worker.rpc
    for connection in list(pool.available.pop(address, ())):
        connection.abort()
        pool.semaphore.release()


def fail_waiting_call(worker: Worker, call: TaskState, error: Exception) -> None:
    """Report a waiting task as failed to the scheduler, so that the worker releases it."""
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


# Results in shared memory -------------------------------------------------------------------------


#: Classes whose objects are unchanged by pickling and loading.
_PLAIN = frozenset(
    {
        ("numpy", "ndarray"),
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.series", "Series"),
    }
)


class SharingWorker(Worker):
    """A worker that moves a result into shared memory when another process first requests it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._moving: dict[Any, asyncio.Future[Any]] = {}

    async def get_data(
        self, comm: Comm, keys: Collection[str], who: str | None = None, serializers: Any = None
    ) -> Any:
        if isinstance(comm, SharingTCP) and comm.sharer is not None:
            for key in keys:
                kind = type(self.data.get(key))
                if kind is dict or kind.__module__ != "builtins":  # others have no large buffers
                    await self._move(key)
        return await super().get_data(comm, keys, who, serializers)

    async def _move(self, key: Any) -> None:
        """Move a result's large buffers into shared memory. Concurrent requests share one move."""
        if key not in self._moving:
            moving = self._moving[key] = asyncio.ensure_future(self._moved(key))
            # Those who asked may be gone before the end.
            moving.add_done_callback(lambda _: self._moving.pop(key, None))
        await asyncio.shield(self._moving[key])

    async def _moved(self, key: Any) -> None:
        value = self.data.get(key)
        if not _is_plain(value):
            return
        try:
            moved = await offload(in_shared_memory, value)
        except (OSError, MemoryError) as error:  # such as a limit on the size of this process
            logger.info("the result %s is sent without shared memory: %s", key, error)
            return
        if moved is not None and self.data.get(key) is value:
            self.data[key] = moved


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:  # the results of a bundle
        return all(type(each) is Pickled for each in value.values())
    return kind is Pickled or (kind.__module__, kind.__qualname__) in _PLAIN


def in_shared_memory(value: Any) -> Any:
    """Return a value with its large buffers in shared memory, or None if none was moved."""
    header, frames = serialize(value)
    moved = False
    for place, frame in enumerate(frames):
        # Bytes are part of the pickle, which is not kept once it is loaded.
        if nbytes(frame) <= LEAST or type(frame) is bytes:
            continue
        data = ensure_memoryview(frame)
        if shared_memory.is_shared(data) or (found := shared_memory.shared(data)) is None:
            continue
        segment, start = found
        frames[place] = segment.view()[start : start + data.nbytes]
        moved = True
    return deserialize(header, frames) if moved else None
