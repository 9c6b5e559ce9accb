"""Futures of an executor's tasks: light ``concurrent.futures.Future`` objects."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, CancelledError, Future
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from dask.utils import funcname
from distributed.client import futures_of

from scalable.client.task_output import display
from scalable.dask_compat.client import state_of
from scalable.errors import ClusterError
from scalable.frames import own_frame_in
from scalable.liveness import refuse_in_child
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent, take_lent_slot_back
from scalable.protocol.measured import PROFILE
from scalable.protocol.messages import Reference
from scalable.protocol.synchronous import wait_for_change
from scalable.units import seconds_of
from scalable.views.explanation import Failure, TaskFacts

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    _Result = TypeVarWithDefault("_Result", default=Any)
else:
    _Result = TypeVar("_Result")

logger = logging.getLogger("scalable.client")

_CONTAINERS = (list, tuple, set, frozenset)
_OVER = (CANCELLED_AND_NOTIFIED, FINISHED)
#: Function that is called with the result and the error of a task, of which one is None.
Tell = Callable[[Any, BaseException | None], None]


_this_thread = threading.local()


def call_futures_of(value: Any) -> set[CallFuture[Any]]:
    """Return the futures of executors in a value, or in a nested list, tuple, set or dict."""
    found, seen, left = set(), set(), [value]
    while left:
        each = left.pop()
        if isinstance(each, CallFuture):
            found.add(each)
        elif (isinstance(each, dict) or type(each) in _CONTAINERS) and id(each) not in seen:
            seen.add(id(each))
            items = each.values() if isinstance(each, dict) else each
            # Most long lists have numbers only, which are not looked at one by one.
            if any(issubclass(kind, _MAY_HOLD) for kind in set(map(type, items))):
                left.extend(items)
    return found


def waits_for_calls(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return Dask's coroutine of ``distributed.wait``, made to wait for executors' tasks too."""

    @wraps(wait)
    async def both(fs: Any, **options: Any) -> Any:
        await wait([], **options)  # Dask refuses what it does not support
        until, limit_s = options.get("return_when", ALL_COMPLETED), options.get("timeout")
        calls, others = call_futures_of(fs), futures_of(fs)
        waits = [asyncio.ensure_future(_done(call)) for call in calls]
        waits += [asyncio.ensure_future(state_of(other).wait()) for other in others]
        try:
            over, open_ = await asyncio.wait(waits, timeout=limit_s, return_when=until)
        finally:
            for each in waits:
                each.cancel()
        if not over or (open_ and until == ALL_COMPLETED):
            raise TimeoutError
        found = await wait([other for other in others if other.status != "pending"])
        found.not_done.update(other for other in others if other.status == "pending")
        for call in calls:
            (found.done if call.done() else found.not_done).add(call)
        return found

    return both


async def _done(call: CallFuture[Any]) -> None:
    """Wait in an event loop until a task has finished, without cancelling it."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    call.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
    await over.wait()


class _LateResultError(multiprocessing.TimeoutError, TimeoutError):
    """Timeout error that is both multiprocessing's and the built-in one."""


class CallFuture(Future[_Result]):
    """Future of one task."""

    # A program may hold a million of them.
    __slots__ = (
        "_callbacks", "_condition", "_exception", "_result", "_state", "_waiting",
        "bundle", "call", "home", "id", "kept", "made_at", "measures", "on_outcome", "takers",
    )  # fmt: skip

    def __init__(
        self,
        condition: threading.Condition,
        call: tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]] | None = None,
        home: Any = None,
    ) -> None:
        # Future.__init__ is not called, because it creates a condition. That would take longer than
        # most tasks run, and more memory than the arguments of most tasks.
        self._condition = condition
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiting: list[Any] | None = None
        self._callbacks: list[Callable[[Future[Any]], Any]] | None = None
        self.call = call
        #: The executor, if the future is that of one of its single tasks, or None.
        self.home = home
        #: Id among the executor's single tasks, once its arguments are complete.
        self.id = 0
        #: Measurements of the tasks of a message, and the position of this task among them.
        self.measures: tuple[MeasuredCalls, int] | None = None
        #: Number of tasks that take the result as an argument.
        self.takers = 0
        #: Reference of the result, if it has stayed on the workers.
        self.kept: Reference | None = None
        #: Called with the result and the error before waiting threads wake up.
        self.on_outcome: Tell | None = None
        #: Key of the bundle with which the task was last sent, or None while it waits in the
        #: client.
        self.bundle: str | None = None
        #: Seconds since 1970.
        self.made_at = time.time()

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        """List of waiters that ``concurrent.futures`` expects, created at the first use."""
        if self._waiting is None:
            self._waiting = []
        return self._waiting

    @property
    def _done_callbacks(self) -> list[Callable[[Future[Any]], Any]]:
        """List of callbacks that ``concurrent.futures`` expects, created at the first use."""
        if self._callbacks is None:
            self._callbacks = []
        return self._callbacks

    # Waiting ------------------------------------------------------------------------------------

    def result(self, timeout: str | float | None = None) -> _Result:
        self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - no reference cycle
        if (kept := self.kept) is not None and self.home is not None:
            self._result = self.home._fetch_kept(kept)
            self.kept = None
        return self._result  # type: ignore[no-any-return]

    @property
    def may_stay(self) -> bool:
        """True if a large result may stay on the workers, because only other tasks wait for it."""
        others = 0 < self.takers >= len(self._callbacks or ()) and self.on_outcome is None
        return others and self.home is not None

    def keep(self, bundle: Any, position: int) -> None:
        """Leave the result on its worker, in a bundle. If it is lost, the task runs again."""
        self.kept = Reference(bundle, partial(self.home._run_again, self.call), position=position)

    def is_near(self, executor: Any) -> bool:
        """Return whether the result may stay on the workers for tasks of an executor."""
        return self.home is not None and self.home._line is executor._line

    def exception(self, timeout: str | float | None = None) -> BaseException | None:
        self._wait(timeout)
        return self._exception

    def _wait(self, timeout: str | float | None) -> None:
        if self._state not in _OVER:
            with slot_lent(), display.waiting():
                self._wait_long(timeout)
        else:
            display.settle()
            take_lent_slot_back()
        if self._state != FINISHED:
            raise CancelledError

    def _wait_long(self, timeout: str | float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + seconds_of("timeout", timeout)
        with self._condition:
            while self._state not in _OVER:  # the condition wakes for other futures too
                wait_until_change(self._condition, deadline)

    def get(self, timeout: str | float | None = None) -> Any:
        """Return the result. A TimeoutError is a ``multiprocessing.TimeoutError`` too."""
        try:
            return self.result(timeout)
        except TimeoutError:
            if self.done():
                raise  # the task itself has raised it
            raise _LateResultError from None

    def wait(self, timeout: str | float | None = None) -> None:
        """Wait until the task has finished, or until the timeout has passed."""
        try:
            self._wait(timeout)
        except (TimeoutError, CancelledError):
            return

    def ready(self) -> bool:
        return self.done()

    def successful(self) -> bool:
        """Return whether a finished task succeeded. Raises ValueError for an unfinished one."""
        if not self.done():
            raise ValueError("the task has not finished")
        return self._state == FINISHED and self._exception is None

    def __reduce__(self) -> Any:
        raise TypeError(
            "the future of an executor's task cannot be pickled: pass it to submit() of an "
            "executor, as an argument or in a list, tuple, set or dict of one, or pass its result()"
        )

    def profile(self) -> dict[str, Any]:
        """Return a finished task's measurements, with the names and units of ``tasks.jsonl``.
        Values are None for a cancelled or lost task. Raises ValueError for an unfinished one.
        """
        if not self.done():
            raise ValueError("the task has not finished")
        state = "cancelled" if self._state != FINISHED else "succeeded"
        state = "failed" if self._exception is not None else state
        if self.measures is None:
            return dict.fromkeys(PROFILE) | {"state": state}
        told, position = self.measures
        began, duration_s = told.began[position], told.durations[position]
        queued_s = max(0.0, began - self.made_at - told.transfer_s)
        values = (
            told.name(position), told.tag or None, told.worker, state, began + duration_s, queued_s,
            told.transfer_s, duration_s, told.cpu_s[position], told.peak_memory,
        )  # fmt: skip
        return dict(zip(PROFILE, values, strict=True))

    # Ending -------------------------------------------------------------------------------------

    def tell_first(self, tell: Tell) -> None:
        """Call ``tell`` with result and error before waiting threads wake up."""
        with self._condition:
            if self._state not in _OVER:
                self.on_outcome = tell
                return
        if self._state == FINISHED:
            error = self._exception
            tell(None if error is not None else self.result(), error)

    def cancel(self) -> bool:
        """Cancel the task, even if it is running. Return False if it has a result or error."""
        with self._condition:
            if self._state in _OVER:
                return self._state != FINISHED
            was_running = self._state == RUNNING
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiting or ():
                waiter.add_cancelled(self)
            self._condition.notify_all()
        self.call = None
        if was_running and self.home is not None:
            self.home._end_call(self)
        self._invoke_callbacks()  # type: ignore[attr-defined]
        return True


#: Seconds for which a thread may hold the lock of futures: none does more than fill a few.
HELD_S = 10.0
_taking_over = threading.Lock()


class OwnCondition(threading.Condition):
    """Condition of an executor. Waiting for it in a fork of its process is an error.
    ``concurrent.futures.wait`` keeps its lock for ever if it is given Dask's futures, too. The
    event loop then takes over with another lock.
    """

    _lock: Any
    _waiters: Any

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def __enter__(self) -> bool:
        held = self._lock
        while not self.acquire(timeout=HELD_S):
            with _taking_over:
                if self._lock is held:  # no other thread has taken over
                    self._take_over()
                held = self._lock
        return True

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # another thread has taken over
            self.release()

    def _take_over(self) -> None:
        logger.error(
            "a thread kept the lock of an executor's futures for %g s; wait for Dask's futures "
            "and those of executors together with distributed.wait",
            HELD_S,
        )
        waiters = self._waiters
        super().__init__()
        self._waiters = waiters

    def wait(self, timeout: float | None = None) -> bool:
        refuse_in_child(self._process)
        return super().wait(timeout)


def wait_until_change(condition: threading.Condition, deadline: float | None) -> None:
    """Wait briefly for a change. The caller must hold the lock. Raises TimeoutError when late."""
    left = math.inf if deadline is None else deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    # An interrupt reaches a task only while its thread is awake.
    wait_for_change(condition, min(left, INTERRUPTIBLE_S))


#: Types of the items of a container in which there may be futures.
_MAY_HOLD = (CallFuture, dict, *_CONTAINERS)


def begun(condition: threading.Condition, futures: Iterable[CallFuture]) -> list[CallFuture]:
    """Mark tasks of one executor as running, and return those that have not finished."""
    with condition:
        left = [future for future in futures if future._state not in _OVER]
        for future in left:
            future._state = RUNNING
    return left


def settle(
    condition: threading.Condition,
    outcomes: Iterable[tuple[CallFuture, Any, BaseException | None]],
) -> None:
    """Set the outcomes of several futures of one executor under one lock. Skip finished ones."""
    ended, told_first = [], []
    with condition:
        for future, result, error in outcomes:
            if future._state in _OVER:
                continue
            if future.on_outcome is not None:
                told_first.append((future, result, error))
                continue
            future._result, future._exception, future._state = result, error, FINISHED
            future.call = None
            if future._waiting:
                for waiter in future._waiting:
                    waiter.add_exception(future) if error is not None else waiter.add_result(future)
            if future._callbacks:
                ended.append(future)
        condition.notify_all()
    _run_callbacks(ended)
    if told_first:
        for future, result, error in told_first:
            _tell(future, result, error)
        settle(condition, told_first)


def _tell(future: CallFuture, result: Any, error: BaseException | None) -> None:
    """Call the function that receives a future's outcome first, and log its exceptions."""
    tell, future.on_outcome = future.on_outcome, None
    if tell is not None:
        ending: Future[None] = Future()  # it logs what its callbacks raise
        ending.add_done_callback(lambda _: tell(result, error))
        ending.set_result(None)


def _run_callbacks(ended: Iterable[CallFuture]) -> None:
    # If a callback settles more futures, their callbacks run later in the same loop. Recursion
    # would be as deep as the longest chain of dependent tasks.
    if getattr(_this_thread, "ended", None) is not None:
        _this_thread.ended.extend(ended)
        return
    _this_thread.ended = waiting = deque(ended)
    try:
        while waiting:
            waiting.popleft()._invoke_callbacks()  # type: ignore[attr-defined]
    finally:
        _this_thread.ended = None


# Measurements -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """Measurements of the tasks in one message."""

    #: Name of each task, or one name for all of them.
    names: Sequence[str]
    tag: str
    worker: str
    #: Transfer time of the arguments in seconds.
    transfer_s: float
    #: Start of each task, in seconds since 1970.
    began: Sequence[float]
    #: In seconds.
    durations: Sequence[float]
    #: In seconds.
    cpu_s: Sequence[float]
    #: Peak memory of the worker in bytes.
    peak_memory: int | None

    def name(self, position: int) -> str:
        """Return the name of the task at a position in the message."""
        return self.names[position if len(self.names) > 1 else 0]


# Facts about tasks --------------------------------------------------------------------------------


def name_of_call(future: CallFuture) -> str:
    """Return the name of a task's function, or ``call`` once the task has finished."""
    return str(funcname(future.call[0])) if future.call is not None else "call"


def unsent_facts(future: CallFuture) -> TaskFacts:
    """Return the facts about a task that is not sent. It may wait for other tasks."""
    if future.home is None:
        raise ClusterError("this future stands for several tasks", hint="explain its pool instead")
    found: TaskFacts | None = future.home._dispatcher.find(future)
    if found is not None:
        return found
    _, args, kwargs = future.call or (None, (), {})
    others = (each for each in call_futures_of([*args, *kwargs.values()]) if not each.done())
    needs = tuple(map(_needed, sorted(others, key=lambda each: each.made_at)))
    name = name_of_call(future)
    return TaskFacts(name, name, "", "needs", needs=needs, needed=len(needs))


def _needed(future: CallFuture) -> TaskFacts:
    name = name_of_call(future)
    return TaskFacts(name, name, "", "assigned" if future.running() else "no-worker")


def ended_facts(future: CallFuture) -> TaskFacts:
    """Return the facts about a task that has finished."""
    told, position = future.measures or (None, 0)
    name = told.name(position) if told is not None else "call"
    worker = told.worker if told is not None else ""
    if future.cancelled():
        return TaskFacts(name, name, "", "cancelled")
    error = future.exception()
    if error is None:
        return TaskFacts(name, name, "", "done", worker=worker)
    trace = "".join(traceback.format_tb(error.__traceback__))
    frame = own_frame_in(trace) or ""
    failure = Failure(type(error).__name__, str(error)[:500], frame, worker)
    return TaskFacts(name, name, "", "failed", worker=worker, failure=failure)
