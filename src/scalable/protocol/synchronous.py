"""Tasks that run in the waiting thread, so that a debugger can be used.

The workers of a synchronous session put their tasks into one queue. Every wait for tasks, in the
user's thread or in a task, takes tasks from the queue and runs them until it is over.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

#: Seconds after which a wait checks again whether it is over.
_CHECK_S = 0.05

_tasks: queue.SimpleQueue[_QueuedTask | None] = queue.SimpleQueue()
#: The executors that take tasks now.
caller_executors: set[CallerThreadPoolExecutor] = set()


class _QueuedTask:
    def __init__(self, executor: CallerThreadPoolExecutor, work: Callable[[], Any]) -> None:
        self.executor, self.work = executor, work
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if self.executor not in caller_executors or not self.future.set_running_or_notify_cancel():
            self.future.cancel()
            return
        try:
            result = self.work()
        except BaseException as error:
            self.future.set_exception(error)
            if isinstance(error, KeyboardInterrupt):
                raise  # it was meant for the user's thread
        else:
            self.future.set_result(result)


class CallerThreadPoolExecutor(Executor):
    """Executor of a worker whose tasks run in the threads that wait for them.
    From the last part of the name, Dask infers that the tasks run in this process.
    """

    #: Attributes of an executor with threads that Dask reads.
    _max_workers = 0
    _work_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _threads: frozenset[threading.Thread] = frozenset()

    def __init__(self) -> None:
        caller_executors.add(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = _QueuedTask(self, functools.partial(fn, *args, **kwargs))
        _tasks.put(task)
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that have not started."""
        del wait, cancel_futures
        caller_executors.discard(self)
        if not caller_executors:
            _functions.clear()


def runs_here() -> bool:
    """Return whether a session's tasks run in the threads that wait for them."""
    return bool(caller_executors)


# Functions ----------------------------------------------------------------------------------------

#: Functions of tasks by their id, while a session runs tasks here.
_functions: dict[int, Callable[..., Any]] = {}


class _InPlace:
    """Function that its worker gets as this very object, not as a copy without source lines."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _function_here, (id(self._function),)


def _function_here(number: int) -> Callable[..., Any]:
    return _functions[number]


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper with which a synchronous task runs this very function object."""
    if not caller_executors or isinstance(function, type):
        return function
    _functions[id(function)] = function
    return _InPlace(function)


# Waits --------------------------------------------------------------------------------------------


def run_next(seconds: float = _CHECK_S) -> None:
    """Run the next task in this thread, unless none arrives within ``seconds``."""
    try:
        task = _tasks.get(timeout=min(seconds, _CHECK_S))
    except queue.Empty:
        return
    if task is not None:
        task.run()


def run_until_done(future: Future[Any]) -> None:
    """Run tasks in this thread until the given future is done."""
    future.add_done_callback(lambda _: _tasks.put(None))  # wake up
    while not future.done():
        run_next()


def wait_for_change(condition: threading.Condition, seconds: float) -> None:
    """Wait for a held condition, and run a task in the meantime if there is one."""
    if not caller_executors:
        condition.wait(seconds)
        return
    condition.release()
    try:
        run_next(seconds)
    finally:
        condition.acquire()
