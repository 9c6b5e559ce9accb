"""Seams of tasks on the scheduler: nodes, attempts, bundles and facts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask._task_spec import Alias, DataNode, GraphNode, NestedContainer, Task, TaskRef
from dask.utils import funcname, key_split
from distributed.protocol.pickle import dumps, loads
from distributed.scheduler import Scheduler, TaskState, WorkerState
from distributed.worker import get_worker

from scalable.dask_compat.by_value import keep_files_in_messages
from scalable.liveness import exit_in_child
from scalable.protocol.failures import (
    described,
    error_text,
    kinds_of,
    note_call,
    release_frames,
    shorten_tracebacks,
)
from scalable.protocol.importing import here, locate_here, show_script
from scalable.protocol.operations import CALLS_ARGUMENT


class CarriedNode(GraphNode):
    """A graph node that a worker unpickles only when the task starts.
    If it were unpickled on arrival, an import error would stop the worker. ``code`` is the id of
    the uploaded code, or "" without any.
    """

    __slots__ = (
        "_begun", "_buffers", "_data", "_node", "code", "failure", "is_coro", "shown",
    )  # fmt: skip

    def __init__(self, node: Any, code: str) -> None:
        self.key = node.key
        self._dependencies = node.dependencies
        self._node = node
        self._data = b""
        self._buffers: tuple[Any, ...] = ()
        #: The node, and the results that it takes, while the task runs in this process.
        self._begun: tuple[Any, Any] | None = None
        #: True for a coroutine function, which runs in the worker's event loop.
        self.is_coro = bool(node.is_coro)  # type: ignore[misc]  # a slot
        self.code = code
        #: Fields of :class:`.FailureDetails`, after the task has failed in this process.
        self.failure: dict[str, Any] | None = None
        self.shown = (
            str(funcname(_called(node)[0])) if hasattr(node, "func") else key_split(node.key)
        )

    def __call__(self, values: Any = ()) -> Any:
        node = self._loaded()
        if (function := getattr(node, "func", None)) is not None:
            by_argument = getattr(function, CALLS_ARGUMENT, False)
            show_script(_called(node)[0] if by_argument else function)
        self._begun = node, values
        pid = os.getpid()
        try:
            result = node(values)
            if os.getpid() != pid:
                exit_in_child(pid, None)
            return self._awaited(result, node, values) if self.is_coro else result
        except BaseException as error:
            exit_in_child(pid, error)
            self._note_failure(error, node, values)
            release_frames(error)
            raise
        finally:
            if not self.is_coro:
                self._begun = None

    def given(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Return the arguments while the task runs in this process, otherwise None."""
        begun = self._begun
        return None if begun is None else arguments_of(*begun)

    async def _awaited(self, coroutine: Any, node: Any, values: Any) -> Any:
        try:
            return await coroutine
        except BaseException as error:
            self._note_failure(error, node, values)
            shorten_tracebacks(error)
            raise
        finally:
            self._begun = None

    def _note_failure(self, error: BaseException, node: Any, values: Any) -> None:
        facts = described(error, lambda: arguments_of(node, values))
        self.failure = {**facts, "kinds": kinds_of(error)}
        locate_here(error, f"task {self.shown!r}")
        note_call(error, self.shown, facts.get("arguments"), _name_of_worker())

    def _loaded(self) -> Any:
        if self._node is not None:  # the worker is in the scheduler's process
            return self._node
        importer = here()
        if importer is not None:
            if not importer.knows(self.code):
                # Other versions may be loaded here: no task may run them silently.
                raise ImportError(
                    f"Task {self.shown!r} on {importer.name}: the version of the workflow's code "
                    "that it needs did not reach the worker; the worker's log contains the reason. "
                    "Submit the "
                    "task again; after many versions, only the later ones are kept."
                )
            importer.use(self.code)
        try:
            return loads(self._data, buffers=self._buffers)
        except ModuleNotFoundError as error:
            locate_here(error, f"task {self.shown!r}")
            raise

    def __repr__(self) -> str:
        return f"<Task {self.key!r} {self.shown}>"

    def __reduce__(self) -> tuple[Any, ...]:
        data, buffers = self._data, list(self._buffers)
        if self._node is not None:
            data = dumps(self._node, buffer_callback=buffers.append)
        state = (self.key, self._dependencies, self.is_coro, self.code, self.shown)
        return _arrived, (state, data, buffers)


def _name_of_worker() -> str | None:
    try:
        return str(get_worker().name)
    except ValueError:
        return None


def _arrived(state: tuple[Any, ...], data: bytes, buffers: list[Any]) -> CarriedNode:
    node: CarriedNode = object.__new__(CarriedNode)
    node._node, node._data, node._buffers = None, data, tuple(buffers)  # noqa: SLF001
    node.failure = node._begun = None  # noqa: SLF001
    node.key, node._dependencies, node.is_coro, node.code, node.shown = state  # type: ignore[misc]  # noqa: SLF001
    return node


#: Maximum entries of a list among the arguments for which results are filled in.
_MOST_ENTRIES = 20


def arguments_of(node: Any, values: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """Return a task node's arguments, filled in from ``values``, or None for other nodes."""
    if type(node) is not Task:
        return None
    is_fused = getattr(node.func, "__name__", "") == "_execute_subgraph"
    args = node.args[3:] if is_fused else _called(node)[1]
    names = {} if is_fused else node.kwargs
    return (
        [_filled(arg, values) for arg in args],
        {str(name): _filled(arg, values) for name, arg in names.items()},
    )


def _called(node: Any) -> tuple[Any, Sequence[Any]]:
    """Return the user's function that a node calls, and its positional arguments."""
    if node.args and getattr(node.func, CALLS_ARGUMENT, False):
        return _filled(node.args[0], {}), node.args[1:]
    return node.func, node.args


def _filled(argument: Any, values: Any) -> Any:
    """Return an argument with the results of other tasks filled in."""
    if isinstance(argument, TaskRef | Alias):
        key = argument.key if isinstance(argument, TaskRef) else argument.target
        return values.get(key, argument)
    if isinstance(argument, DataNode):
        return argument.value
    if isinstance(argument, NestedContainer) and len(argument.args) <= _MOST_ENTRIES:
        return type(argument).constructor([_filled(entry, values) for entry in argument.args])
    return argument


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for a graph that arrives while the scheduler's process exits."""
    return not record.getMessage().startswith("cannot schedule new futures after")


logging.getLogger(Scheduler.__module__).addFilter(_is_news)
keep_files_in_messages()


def fail_ready_task(scheduler: Scheduler, task: TaskState, error: Exception) -> None:
    """Fail a task that runs or is ready. Do nothing in other states."""
    if task.state not in ("processing", "queued", "no-worker"):
        return
    where = {"worker": task.processing_on.address} if task.processing_on is not None else {}
    stimulus = "scalable-cannot-run"
    recommendations = scheduler.transition(
        task.key,
        "erred",
        exception=dumps(error),
        exception_text=error_text(error),
        cause=task.key,
        stimulus_id=stimulus,
        **where,
    )
    scheduler.transitions(recommendations, stimulus)


# Tasks that run again -----------------------------------------------------------------------------


def failed_try(details: Mapping[str, Any]) -> bool:
    """Return whether a task left its worker after a failed attempt that may be repeated."""
    return str(details.get("stimulus_id", "")).startswith("task-erred-")


def take_back(scheduler: Scheduler, task: TaskState, *, failed: bool) -> None:
    """Release a task and schedule it again. ``failed`` marks its attempt as failed."""
    if task.state in ("processing", "queued", "no-worker"):
        stimulus = f"{'task-erred' if failed else 'scalable-taken-back'}-{time.time()}"
        scheduler.transitions({task.key: "waiting"}, stimulus)


def run_now(scheduler: Scheduler, task: TaskState) -> None:
    """Assign a ``no-worker`` task to a worker. A task in another state is unchanged."""
    if task.state == "no-worker":
        scheduler.transitions({task.key: "processing"}, f"scalable-tried-again-{time.time()}")


def begun_on(worker: WorkerState, tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return the assigned tasks that a lost worker had started.
    These are the tasks in its last heartbeat, and for its other threads the next by priority.
    """
    assigned = sorted(tasks, key=lambda task: task.priority or ())
    told = [t for t in assigned if t in worker.executing or t in worker.long_running]
    others = [task for task in assigned if task not in told]
    return told + others[: max(0, worker.nthreads - len(told))]


# Tasks that belong to one worker ------------------------------------------------------------------


def forget_when_released(task: TaskState) -> None:
    """Make Dask cancel a task when its worker releases it, instead of running it again."""
    task.has_lost_dependencies = True


def is_given_back(task: TaskState) -> bool:
    """Return whether :func:`forget_when_released` was called for a task."""
    return bool(task.has_lost_dependencies)


# Facts about tasks --------------------------------------------------------------------------------


def usual_duration(task: TaskState) -> float | None:
    """Return the mean running seconds of tasks with the same prefix, or None if unknown."""
    mean = float(task.prefix.duration_average)
    return mean if mean >= 0 else None


def counts_of_waiting(scheduler: Scheduler) -> dict[str, int]:
    """Map task prefixes to their numbers of blocked tasks. Zeros are left out."""
    counts = {name: p.states.get("waiting", 0) for name, p in scheduler.task_prefixes.items()}
    return {name: count for name, count in counts.items() if count}


class FailedTask:
    """Failure of a task.
    ``error`` is the exception's ``repr``. ``blamed`` is the key of the task that failed first, or
    None. ``lost`` is the number of workers lost while they ran it.
    """

    def __init__(self, task: TaskState) -> None:
        cause = task.exception_blame or task
        self.error = str(cause.exception_text or "")
        self.traceback = str(cause.traceback_text or "")
        self.blamed: Any = None if cause is task else cause.key
        self.workers = sorted(map(str, cause.erred_on or ()))
        self.lost = int(cause.suspicious)
