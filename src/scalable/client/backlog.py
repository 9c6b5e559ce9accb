"""Tasks that wait in the client, and bundles that were sent."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, count, repeat
from typing import Any, Protocol

from dask.utils import funcname
from distributed import Future

from scalable.client.futures import CallFuture, MeasuredCalls, begun, settle
from scalable.errors import ClusterError
from scalable.protocol.operations import Calls
from scalable.units import seconds_of

#: Result and exception of a task, of which one is None.
ValueOrError = tuple[Any, BaseException | None]


class PendingCalls(Protocol):
    """Group of waiting tasks. A *number* (an index or a future) identifies each task."""

    #: True if the client collects the measurements of each task.
    profile: bool
    #: True if other groups take turns with this one, which may never become empty.
    takes_turns: bool

    @property
    def stays(self) -> bool:
        """True if tasks may still be added. The group then stays in the backlog even if empty."""

    def __len__(self) -> int:
        """Return the number of waiting tasks."""

    def take(self, count: int) -> list[Any]:
        """Remove at most ``count`` waiting tasks, and return their numbers."""

    def function(self, number: Any) -> Callable[..., Any]:
        """Return the function of a task."""

    def calls(
        self, numbers: Sequence[Any], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[Any], Calls]:
        """Return the numbers of the tasks to send, and the tasks as ``Calls``.
        ``index`` returns a function's index in the bundle. Tasks that cannot be pickled fail.
        """

    def sent(self, numbers: Sequence[Any], bundle: str) -> None:
        """Record the key of the bundle in which the given tasks are sent."""

    def settle(self, numbers: Sequence[Any], outcomes: Sequence[ValueOrError]) -> None:
        """Store the results or errors of tasks. Skip tasks that already have one."""

    def settle_values(self, numbers: Sequence[Any], values: Sequence[Any]) -> None:
        """Store the results of tasks that have no result or error yet."""

    def measured(self, numbers: Sequence[Any], measures: MeasuredCalls) -> None:
        """Store the measurements of tasks. Called before their results are stored."""

    def put_back(self, numbers: Sequence[Any]) -> None:
        """Put tasks back among the waiting ones, keeping their order."""

    def lost(self, number: Any) -> int:
        """Count another lost worker of a task, and return the number of its lost workers."""

    def suspects(self, number: Any) -> bool:
        """Return whether a worker was lost while it ran the given task."""

    def end(self, error: BaseException) -> None:
        """Accept no more tasks. Callers waiting for a task that was never added get the error."""

    def is_over(self, number: Any) -> bool:
        """Return whether the given task has finished, or no caller waits for it any more."""


class SingleCalls:
    """Waiting tasks, each identified by its future."""

    profile = stays = True
    takes_turns = False

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._waiting: deque[CallFuture] = deque()
        #: Creation time, number and future of each task that was put back: a heap, so that the
        #: earliest is sent first.
        self._again: list[tuple[float, int, CallFuture]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, future: CallFuture) -> None:
        self._waiting.append(future)

    def position(self, future: CallFuture) -> int | None:
        """Return how many tasks wait ahead of the given one, or None if it is not waiting."""
        waiting = chain((future for _, _, future in sorted(self._again)), list(self._waiting))
        return next((i for i, each in enumerate(waiting) if each is future), None)

    def take(self, count: int) -> list[CallFuture]:
        """Remove at most ``count`` tasks, and return the futures that are not cancelled."""
        taken: list[CallFuture] = []
        while some := self._removed(count - len(taken)):
            taken += begun(self._condition, some)
        return taken

    def _removed(self, count: int) -> list[CallFuture]:
        """Remove at most ``count`` tasks, starting with those that were put back."""
        removed: list[CallFuture] = []
        # Several threads may remove tasks, so that one of them finds none where some were.
        with suppress(IndexError):
            while self._again and len(removed) < count:
                removed.append(heappop(self._again)[-1])
        with suppress(IndexError):
            for _ in range(count - len(removed)):
                removed.append(self._waiting.popleft())  # noqa: PERF401 - until there is none
        return removed

    def function(self, number: CallFuture) -> Callable[..., Any]:
        """Return a task's function, or one that does nothing if the task was cancelled."""
        return (number.call or _CANCELLED)[0]

    def calls(
        self, numbers: Sequence[CallFuture], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[CallFuture], Calls]:
        sent: list[CallFuture] = []
        indexes: list[int] = []
        args: list[Sequence[Any]] = []
        kwargs: list[Mapping[str, Any] | None] = []
        last, place = None, 0
        for future in numbers:
            function, positional, named = future.call or _CANCELLED
            if function is not last:
                try:
                    last, place = function, index(function)
                except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
                    self.settle([future], [(None, error)])
                    continue
            indexes.append(place)
            sent.append(future)
            args.append(positional)
            kwargs.append(named)
        return sent, (indexes if any(indexes) else None, args, kwargs if any(kwargs) else None)

    def sent(self, numbers: Sequence[CallFuture], bundle: str) -> None:
        for future in numbers:
            future.bundle = bundle

    def settle(self, numbers: Sequence[CallFuture], outcomes: Sequence[ValueOrError]) -> None:
        settle(
            self._condition,
            [(f, value, error) for f, (value, error) in zip(numbers, outcomes, strict=True)],
        )

    def settle_values(self, numbers: Sequence[CallFuture], values: Sequence[Any]) -> None:
        settle(self._condition, zip(numbers, values, repeat(None)))

    def measured(self, numbers: Sequence[CallFuture], measures: MeasuredCalls) -> None:
        for position, future in enumerate(numbers):
            future.measures = measures, position

    def put_back(self, numbers: Sequence[CallFuture]) -> None:
        for future in numbers:
            if not future.done():
                future.bundle = None
                heappush(self._again, (future.made_at, next(self._numbers), future))

    def lost(self, number: CallFuture) -> int:
        number.losses += 1
        return number.losses

    def suspects(self, number: CallFuture) -> bool:
        return number.losses > 0

    def end(self, error: BaseException) -> None:
        """Do nothing: each task has a future, so no caller waits for a missing task."""

    def is_over(self, number: CallFuture) -> bool:
        return number.done()

    def cancel_all(self) -> None:
        """Cancel all waiting tasks, including tasks that are put back at the same time."""
        while some := self._removed(len(self)):
            for future in some:
                future.cancel()


def _do_nothing() -> None:
    """Stand in for the function of a cancelled task."""


_CANCELLED: Any = (_do_nothing, (), {})


# Sent bundles -------------------------------------------------------------------------------------


@dataclass
class SentBundle:
    """Tasks that were sent together."""

    #: Key of the Dask task.
    key: str
    #: Pending tasks from which the tasks of the bundle were taken.
    pending: PendingCalls
    #: Numbers of the tasks within ``pending``.
    numbers: list[Any]
    #: Positions of the tasks whose outcome is not known.
    open: set[int]
    #: Time of the latest message about the bundle, in seconds of the monotonic clock.
    heard_at: float
    #: The bundle's task may have killed a worker: its start is reported first.
    suspected: bool
    #: The bundle is known to have started.
    begun: bool = False
    #: The worker was asked to give back the tasks if the bundle has not started.
    withdrawn: bool = False
    #: All tasks of the bundle have run.
    over: bool = False
    #: The bundle has arguments that can be uploaded again if they are lost.
    renewable: bool = False
    #: A refusal for lack of workers means that the pool has none. Otherwise it may come from a task
    #: whose result is an argument.
    refusal_counts: bool = True
    #: Name of the first attempt by position, for tasks that were sent before.
    first_tries: dict[int, str] = field(default_factory=dict)
    #: Positions of the tasks whose results stay on the worker until they are fetched.
    kept: list[int] = field(default_factory=list)
    #: Future of the Dask task.
    future: Future[Any] | None = None
    _positions: dict[Any, int] | None = field(default=None, init=False, repr=False)

    def position_of(self, number: Any) -> int:
        """Return the position of the given task. Only the first request searches all tasks."""
        if self._positions is None:
            self._positions = {each: position for position, each in enumerate(self.numbers)}
        return self._positions[number]

    def left(self) -> list[int]:
        """Return the positions of the tasks that a caller still waits for."""
        return sorted(p for p in self.open if not self.pending.is_over(self.numbers[p]))

    def fail(self, positions: list[int], error: BaseException) -> None:
        numbers = [self.numbers[position] for position in positions]
        self.pending.settle(numbers, [(None, error)] * len(numbers))


# Options ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallOptions:
    """Options that all tasks of an executor share."""

    #: Name of the bundles, for Dask's keys and the records.
    name: str
    #: Tag of the pool, or empty for any worker.
    tag: str
    #: Number of slots of the tag that one task takes.
    slots_per_call: int = 1
    #: Dask resources that one task takes.
    resources: dict[str, float] | None = None
    #: Task name that the user gave.
    task: str | None = None
    #: Longest running time of a task in seconds.
    timeout_s: float | None = None
    #: Print the output of tasks in this process.
    stream_output: bool = False
    #: Write a row for each task into the records.
    record_calls: bool = False

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name under which the tasks of a function are recorded."""
        try:
            return self.task or str(funcname(function))
        except Exception:  # noqa: BLE001 - the object's own code
            return type(function).__name__


def time_limit(timeout: str | float | None) -> float | None:
    """Return a task's time limit in seconds. Raises ClusterError unless it is positive or None."""
    try:
        seconds = seconds_of("timeout", timeout)
    except ValueError as error:
        raise ClusterError(str(error)) from None
    if seconds is not None and not seconds > 0:
        raise ClusterError(f"timeout={timeout!r}: timeout must be a positive number of seconds")
    return seconds
