"""Tasks that wait in the client, single or many of one function, and the bundles that they fill.

A *bundle* is a batch of tasks that is sent as one Dask task.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, compress, count, repeat
from typing import Any

from dask.utils import funcname
from distributed import Future

from scalable.client.failures import name_of, parts_of_call, unsendable, with_package
from scalable.client.futures import (
    CallFuture,
    MeasuredCalls,
    begun,
    settle,
    wait_until_change,
)
from scalable.client.task_output import display
from scalable.dask_compat.client import not_loaded
from scalable.errors import ClusterError
from scalable.protocol.failures import arguments_text
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent
from scalable.protocol.messages import (
    Found,
    Reference,
    dump_calls,
    dump_function,
    load,
    load_error,
)
from scalable.protocol.operations import ERROR, KEPT, PICKLED, TELL_S
from scalable.units import seconds_of

#: Functions, positional and keyword arguments of tasks.
Tasks = tuple[
    Sequence[Callable[..., Any]], Sequence[Sequence[Any]], Sequence[Mapping[str, Any]] | None
]


class PendingCalls(ABC):
    """Group of waiting tasks. A *number* (an index or a future) identifies each task."""

    #: True if the client collects the measurements of each task.
    profile = False

    def __init__(self, condition: threading.Condition) -> None:
        #: With the id of a task, it names the task in all bundles with which it is sent.
        self.id = uuid.uuid4().hex
        self._condition = condition
        #: Id and number of each task that was put back: a heap, so that the earliest is sent first.
        self._again: list[tuple[int, Any]] = []
        #: Number of lost workers by id of the task that was running.
        self._losses: dict[int, int] = {}
        #: Key of the lost bundle by id of a task that is not sent again yet.
        self._lost_with: dict[int, str] = {}

    @property
    def stays(self) -> bool:
        """True if tasks may still be added. The group then stays in the backlog even if empty."""
        return True

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting tasks."""

    def ids(self, numbers: Sequence[Any]) -> Sequence[int]:
        """Return the ids of tasks. Tasks that were added earlier have smaller ids."""
        return numbers

    @abstractmethod
    def take(self, count: int) -> Sequence[Any]:
        """Remove at most ``count`` waiting tasks, and return their numbers."""

    @abstractmethod
    def function(self, number: Any) -> Callable[..., Any]:
        """Return the function of a task."""

    @abstractmethod
    def calls(self, numbers: Sequence[Any]) -> Tasks:
        """Return functions, positional and keyword arguments of tasks (None if all have none).
        There is one function alone if all tasks have the same.
        """

    @abstractmethod
    def settle(
        self,
        numbers: Sequence[Any],
        values: Sequence[Any],
        errors: Sequence[BaseException | None] | None = None,
    ) -> None:
        """Store the results or errors of tasks that have none, as far as a caller waits for them.
        ``errors`` is None if all tasks have succeeded.
        """

    def fail(self, numbers: Sequence[Any], error: BaseException) -> None:
        """Fail the tasks that have not finished."""
        numbers = [number for number in numbers if not self.is_over(number)]
        self.settle(numbers, [None] * len(numbers), [error] * len(numbers))

    def measured(self, numbers: Sequence[Any], measures: MeasuredCalls) -> None:  # noqa: B027
        """Store the measurements of tasks, if users can read them. Their results follow."""

    @abstractmethod
    def is_over(self, number: Any) -> bool:
        """Return whether the given task has finished, or no caller waits for it any more."""

    def end(self, error: BaseException) -> None:  # noqa: B027 - only readers add tasks late
        """Accept no more tasks. Callers waiting for a task that was never added get the error."""

    def sent(self, numbers: Sequence[Any], bundle: str) -> None:  # noqa: B027 - without futures
        """Record the key of the bundle in which the given tasks are sent."""

    def put_back(self, numbers: Sequence[Any]) -> None:
        """Put tasks back among the waiting ones, keeping their order."""
        for call, number in zip(self.ids(numbers), numbers, strict=True):
            if not self.is_over(number):
                heappush(self._again, (call, number))

    def lost(self, number: Any) -> int:
        """Count another lost worker of a task, and return the number of its lost workers."""
        (call,) = self.ids([number])
        self._losses[call] = self._losses.get(call, 0) + 1
        return self._losses[call]

    def losses(self, number: Any) -> int:
        """Return the number of lost workers of a task."""
        return self._losses.get(self.ids([number])[0], 0)

    def suspects(self, numbers: Sequence[Any]) -> list[Any]:
        """Return the tasks during which a worker was lost."""
        if not self._losses:
            return []
        both = zip(self.ids(numbers), numbers, strict=True)
        return [number for call, number in both if call in self._losses]

    def note_lost(self, numbers: Sequence[Any], bundle: str) -> None:
        """Record that these tasks may have started in a lost bundle, and are sent again."""
        self._lost_with.update(dict.fromkeys(self.ids(numbers), bundle))

    def resent(self, numbers: Sequence[Any]) -> dict[str, Any]:
        """Return the annotation of a bundle with resent tasks, and forget these tasks.
        ``after`` is the key of the first one's lost bundle, ``again`` the number of tasks from that
        bundle. The annotation is empty if no task was lost before.
        """
        if not self._lost_with:
            return {}
        found = [self._lost_with.pop(call, None) for call in self.ids(numbers)]
        keys = [key for key in found if key is not None]
        return {"after": keys[0], "again": keys.count(keys[0])} if keys else {}


class SingleCalls(PendingCalls):
    """Waiting tasks, each identified by its future."""

    profile = True

    def __init__(self, condition: threading.Condition) -> None:
        super().__init__(condition)
        self._waiting: deque[CallFuture] = deque()
        self._ids = count()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, future: CallFuture) -> None:
        future.id = next(self._ids)
        self._waiting.append(future)

    def ids(self, numbers: Sequence[CallFuture]) -> list[int]:
        return [future.id for future in numbers]

    def position(self, future: CallFuture) -> int | None:
        """Return how many tasks wait ahead of the given one, or None if it is not waiting."""
        waiting = chain((future for _, future in sorted(self._again)), list(self._waiting))
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

    def calls(self, numbers: Sequence[CallFuture]) -> Tasks:
        # Not zip(*tasks): it makes an iterator for each task, all of which are garbage to collect.
        tasks: list[Any] = [each.call or _CANCELLED for each in numbers]
        functions, args, kwargs = ([task[part] for task in tasks] for part in range(3))
        return functions, args, kwargs if any(kwargs) else None

    def sent(self, numbers: Sequence[CallFuture], bundle: str) -> None:
        for future in numbers:
            future.bundle = bundle

    def settle(
        self,
        numbers: Sequence[CallFuture],
        values: Sequence[Any],
        errors: Sequence[BaseException | None] | None = None,
    ) -> None:
        settle(self._condition, zip(numbers, values, errors or repeat(None), strict=False))

    def measured(self, numbers: Sequence[CallFuture], measures: MeasuredCalls) -> None:
        for position, future in enumerate(numbers):
            future.measures = measures, position

    def put_back(self, numbers: Sequence[CallFuture]) -> None:
        for future in numbers:
            future.bundle = None
        super().put_back(numbers)

    def is_over(self, number: CallFuture) -> bool:
        return number.done()

    def cancel_all(self) -> None:
        """Cancel all waiting tasks, including tasks that are put back at the same time."""
        while some := self._removed(len(self)):
            for future in some:
                future.cancel()


#: Stands in for a cancelled task.
_CANCELLED: Any = (bool, (), {})


# Tasks of one function ----------------------------------------------------------------------------

#: Number of outcomes that are not taken yet, in multiples of the tasks that keep slots busy, at
#: which no more arguments are read.
MOST_UNTAKEN = 4
#: Share of the capacity that has to be free before reading continues, so that it rarely does.
FREE = 0.25


class Raised:
    """Error of a task in place of its result."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class MappedCalls(PendingCalls):
    """Tasks of one function, without a future for each of them.
    ``rows`` contains the arguments of all tasks. If it is None, :meth:`read` adds them.
    """

    def __init__(
        self,
        condition: threading.Condition,
        function: Callable[..., Any],
        rows: list[tuple[Any, ...]] | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__(condition)
        self._function = function
        #: True if there may be any number of tasks, so that nothing is kept for longer than needed.
        self._reads = rows is None
        #: Arguments by number. In a dict, those of the unfinished tasks alone.
        self._arguments: Any = {} if rows is None else rows
        #: Numbers of tasks that were added, sent, and whose outcomes have become ready.
        self._total, self._begun, self._delivered = len(self._arguments), 0, 0
        #: Results or :class:`Raised` errors that can be taken.
        self._ready: deque[Any] = deque()
        #: Outcomes of tasks that follow each other, by the number of the first one, while an
        #: earlier outcome is missing. Without order, none is missing.
        self._early: dict[int, Sequence[Any]] = {}
        self._ordered = ordered
        #: Number of taken outcomes at which reading continues. It is infinite while it does not
        #: wait.
        self._goes_on_at = math.inf
        self._exhausted = not self._reads
        self.read_error: BaseException | None = None
        #: True if no caller waits for the unfinished tasks any more.
        self.cancelled = False
        #: Called when all tasks have a result or error, or are cancelled.
        self.on_end: Callable[[MappedCalls], None] | None = None

    @property
    def stays(self) -> bool:
        return not (self._exhausted or self.cancelled)

    def __len__(self) -> int:
        return 0 if self.cancelled else self._total - self._begun + len(self._again)

    def take(self, count: int) -> Sequence[int]:
        if self.cancelled:
            return []
        again = [heappop(self._again)[-1] for _ in range(min(count, len(self._again)))]
        new = range(self._begun, min(self._begun + count - len(again), self._total))
        self._begun = new.stop
        if self._goes_on_at < math.inf:
            self._wake_reader()
        return [*again, *new] if again else new

    def function(self, number: int) -> Callable[..., Any]:
        del number
        return self._function

    def calls(self, numbers: Sequence[int]) -> Tasks:
        return [self._function], items(self._arguments, numbers), None

    def settle(
        self,
        numbers: Sequence[int],
        values: Sequence[Any],
        errors: Sequence[BaseException | None] | None = None,
    ) -> None:
        if errors is not None:
            both = zip(values, errors, strict=True)
            values = [value if error is None else Raised(error) for value, error in both]
        with self._condition:
            if self._reads:
                for number in numbers:
                    del self._arguments[number]
            if not self._ordered:
                self._early[self._delivered] = values
            elif isinstance(numbers, range):
                self._early[numbers.start] = values
            else:
                self._early.update((n, [v]) for n, v in zip(numbers, values, strict=True))
            while following := self._early.pop(self._delivered, None):
                self._ready.extend(following)
                self._delivered += len(following)  # last: outcomes are taken without the lock
            over = self._is_over()
            self._condition.notify_all()
        if over and self.on_end is not None:
            self.on_end(self)

    def is_over(self, number: int) -> bool:
        return self.cancelled or (self._reads and number not in self._arguments)

    def cancel(self) -> None:
        """Drop all unfinished tasks."""
        with self._condition:
            is_late = self.cancelled or self._is_over()
            self.cancelled = True
            self._condition.notify_all()
        if not is_late and self.on_end is not None:
            self.on_end(self)

    def _is_over(self) -> bool:
        return self._exhausted and self._delivered == self._total

    # For the thread that iterates ---------------------------------------------------------------

    def outcomes(self, deadline: float | None = None, *, raises: bool = False) -> Iterator[Any]:
        """Iterate over results and :class:`Raised` errors, and cancel the tasks at the end.
        ``raises`` makes the first error the end. ``deadline`` is in monotonic seconds.
        Raises TimeoutError, or CancelledError after a cancel.
        """
        ready = self._ready
        try:
            while ready or (not self._is_end() and self._await(deadline)):
                if raises and type(ready[0]) is Raised:
                    raise ready.popleft().error
                if self._reads:
                    taken = [ready.popleft()]  # a list, so that no other reference exists
                    if self._taken >= self._goes_on_at:
                        self._wake_reader()
                    yield taken.pop()
                else:
                    yield ready.popleft()
        finally:
            self.cancel()

    @property
    def _taken(self) -> int:
        """Number of outcomes that were taken."""
        return self._delivered - len(self._ready)

    def _is_end(self) -> bool:
        """Return whether no outcomes are left."""
        if not self._exhausted or self._taken < self._total:
            return False
        if self.read_error is not None:
            raise self.read_error
        return True

    def _await(self, deadline: float | None) -> bool:
        """Wait for the next outcome. Return False at the end."""
        with slot_lent(), display.waiting(), self._condition:
            while not self._ready:
                if self._is_end():
                    return False
                if self.cancelled:
                    raise CancelledError
                wait_until_change(self._condition, deadline)
        return True

    def collect(self) -> list[Any]:
        """Return the list of all results, or raise the error of the first failed task."""
        for each in self._ready:
            if type(each) is Raised:
                raise each.error
        return list(self._ready)

    # In the thread that reads -------------------------------------------------------------------

    def read(
        self,
        rows: Iterator[tuple[Any, ...]],
        most: Callable[[], tuple[float, float]],
        wake: Callable[[], None],
    ) -> None:
        """Read an iterator as far ahead as ``most`` allows. An error is kept in ``read_error``."""
        error: BaseException | None = None
        try:
            while self._add(rows, self._room(most), wake):
                pass
        except BaseException as raised:  # noqa: BLE001 - next() of the results raises it
            error = raised
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Stop reading. The error follows the results of the tasks that were added."""
        with self._condition:
            if not self._exhausted:
                self.read_error, self._exhausted = error, True
            self._condition.notify_all()

    def _room(self, most: Callable[[], tuple[float, float]]) -> float:
        """Wait until tasks may be added, and return how many, or 0 if reading has stopped."""
        with self._condition:
            while self.stays:
                self._goes_on_at = 0  # what other threads change from now on is not missed
                waiting, untaken = most()
                free = untaken - self._total + self._taken
                room = min(waiting - len(self), free)
                if room >= max(1, FREE * min(waiting, untaken)):
                    break
                self._goes_on_at = self._taken + FREE * untaken - free
                self._condition.wait(INTERRUPTIBLE_S)
            else:
                room = 0
            self._goes_on_at = math.inf
        return room

    def _add(self, rows: Iterator[tuple[Any, ...]], room: float, wake: Callable[[], None]) -> bool:
        """Add at most ``room`` tasks, and return False if there are no more to read."""
        while room >= 1 and self.stays:
            row = next(rows, None)
            if row is None:
                return False
            self._arguments[self._total] = row
            self._total += 1  # now the task is there for other threads
            room -= 1
            wake()
        return self.stays

    def _wake_reader(self) -> None:
        with self._condition:
            self._condition.notify_all()

    # In other threads ---------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Stop reading. Tasks that were added still run."""
        self._exhausted = True


# Bundles ------------------------------------------------------------------------------------------

#: Largest number of tasks of one lost bundle that are suspected.
MOST_SUSPECTS = 256
#: Digest and bytes of each function.
Functions = tuple[tuple[bytes, bytes], ...]


@dataclass(eq=False)
class Bundle:
    """Tasks that are sent together, or wait together for an argument."""

    #: Pending tasks from which the tasks of the bundle were taken.
    pending: PendingCalls
    #: Numbers of the tasks within ``pending``.
    numbers: Sequence[Any]
    #: Dask futures and :class:`Reference` objects within the arguments, by key of the future. All
    #: tasks have the same, because a lost or failed one takes all tasks with it.
    references: Found = field(default_factory=dict)
    #: Key of the Dask task, once it is sent, and name of its tasks if they have one function.
    key: str = ""
    name: str = ""
    #: The bundle's task may have killed a worker: its start is reported first.
    suspected: bool = False
    #: Time of the latest message about the bundle, in seconds of the monotonic clock.
    heard_at: float = field(default_factory=time.monotonic)
    #: A byte for each task: 1 if its outcome is not known, else 0.
    open: bytearray = field(init=False, repr=False)
    #: The worker was asked to give back the tasks if the bundle has not started.
    withdrawn: bool = False
    #: Positions of the tasks whose results stay on the worker until they are fetched.
    kept: list[int] = field(default_factory=list)
    #: Future of the Dask task.
    future: Future[Any] | None = None
    _positions: dict[Any, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.open = bytearray(b"\1") * len(self.numbers)

    def close(self, positions: Sequence[int]) -> None:
        """Record that the outcomes of some tasks are known, or are not waited for."""
        if isinstance(positions, range):
            self.open[positions.start : positions.stop] = bytes(len(positions))
        else:
            for position in positions:
                self.open[position] = 0

    @property
    def futures(self) -> dict[Any, Future[Any]]:
        """Dask futures of the references, by key."""
        return {
            key: each.future if isinstance(each, Reference) else each
            for key, each in self.references.items()
        }

    def position_of(self, number: Any) -> int:
        """Return the position of the given task. Only the first request searches all tasks."""
        if self._positions is None:
            self._positions = {each: position for position, each in enumerate(self.numbers)}
        return self._positions[number]

    def about(self) -> dict[str, Any]:
        """Return what the scheduler needs to know about the tasks."""
        about = {"calls": len(self.numbers), **self.pending.resent(self.numbers)}
        if self.suspected:
            about |= {"losses": self.pending.losses(self.numbers[0]), "arguments": self.arguments()}
        return about

    def arguments(self) -> str | None:
        """Return the arguments of the first task as a string, or None if they are not recorded."""
        _, args, kwargs = self.pending.calls(self.numbers[:1])
        return arguments_text(lambda: (args[0], kwargs[0] if kwargs else {}))

    def left(self) -> list[int]:
        """Return the positions of the tasks that a caller still waits for."""
        is_over, numbers = self.pending.is_over, self.numbers
        return [p for p in compress(count(), self.open) if not is_over(numbers[p])]

    def count_loss(self, call_s: float, *, begun: bool) -> int:
        """Count the lost worker of the tasks that may have killed it, and return the largest count.
        ``call_s`` is the mean duration of the tasks in seconds.
        """
        left = self.left()
        if not left or (self.suspected and not begun):
            return 0
        # The tasks that were running, or that have finished since the last message.
        unsure = min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
        return max(self.pending.lost(self.numbers[position]) for position in left[:unsure])

    def fail(self, positions: Sequence[int], error: BaseException) -> None:
        self.close(positions)
        self.pending.fail([self.numbers[position] for position in positions], error)


def items(values: Any, numbers: Sequence[int]) -> Any:
    """Return the items of a sequence at some positions, or the values of a mapping at some keys."""
    if isinstance(numbers, range) and not isinstance(values, dict):
        return values[numbers.start : numbers.stop]
    return [values[number] for number in numbers]


def pack(
    pending: PendingCalls, numbers: Sequence[Any]
) -> Iterator[tuple[Bundle, Functions, bytes]]:
    """Yield one or several bundles with their functions and tasks as bytes.
    A task that cannot be pickled fails.
    """
    functions, args, kwargs = pending.calls(numbers)
    try:
        distinct = {id(function): function for function in functions}  # some cannot be hashed
        dumped = {key: dump_function(function) for key, function in distinct.items()}
    except BaseException as error:  # noqa: BLE001 - it would end the event loop
        if len(functions) == 1:
            pending.fail(numbers, error if isinstance(error, Exception) else not_sent(error))
        else:
            yield from _pack_apart(pending, [[number] for number in numbers])
        return
    places = {each: place for place, each in enumerate(dict.fromkeys(dumped.values()))}
    indexes = [places[dumped[id(each)]] for each in functions] if len(places) > 1 else None
    try:
        payload, found = dump_calls((indexes, args, kwargs))
    except BaseException as error:  # noqa: BLE001 - it would end the event loop
        if len(numbers) > 1:  # the other tasks may be fine
            yield from _pack_apart(pending, [[number] for number in numbers])
            return
        reason: BaseException = not_sent(error)
        if isinstance(error, Exception):
            parts = parts_of_call(functions[0], args[0], kwargs[0] if kwargs else None)
            reason = unsendable(name_of(functions[0]), parts) or error
        pending.fail(numbers, reason)
        return
    groups: dict[frozenset[Any], list[Any]] = {}
    for number, references in zip(numbers, found, strict=False):
        groups.setdefault(frozenset(references), []).append(number)
    if len(groups) > 1:
        yield from _pack_apart(pending, groups.values())
    else:
        bundle = Bundle(pending, numbers, found[0] if found else {})
        bundle.suspected = bool(pending.suspects(numbers))
        yield bundle, tuple(places), payload


def not_sent(error: BaseException) -> ClusterError:
    """Return the error for a task that could not be sent for another one."""
    return ClusterError(f"the task could not be sent: {error!r}")


def _pack_apart(
    pending: PendingCalls, groups: Iterable[list[Any]]
) -> Iterator[tuple[Bundle, Functions, bytes]]:
    for numbers in groups:
        yield from pack(pending, numbers)


# Outcomes -----------------------------------------------------------------------------------------


def loaded(kind: int, value: Any) -> tuple[Any, BaseException | None]:
    """Return the result and the error of a task. One of them is None.
    ``kind`` (see :mod:`scalable.protocol.operations`) determines the form of ``value``.
    """
    if kind == ERROR:
        return None, with_package(load_error(value))
    if kind in (PICKLED, KEPT):
        try:
            return value.load() if kind == KEPT else load(value), None
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            return None, error
        except BaseException as ended:  # noqa: BLE001 - it would end the event loop
            return None, not_loaded("the result", ended)
    return value, None


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
