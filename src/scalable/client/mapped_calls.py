"""Waiting tasks of one function, one for each tuple of arguments."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import CancelledError
from heapq import heappop, heappush
from typing import Any, TypeVar

from scalable.client.backlog import ValueOrError
from scalable.client.futures import CallFuture, MeasuredCalls
from scalable.client.task_output import display
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent
from scalable.protocol.operations import Calls
from scalable.protocol.synchronous import wait_for_change

#: Result of a task that has none.
MISSING: Any = object()
#: Error of a task or None, and its result: a list, so that no other reference to the result exists.
Outcome = list[Any]


class MappedCalls:
    """Waiting tasks of one function, with one list of results instead of single futures."""

    profile = stays = takes_turns = False

    def __init__(
        self,
        condition: threading.Condition,
        function: Callable[..., Any],
        arguments: Sequence[Sequence[Any]],
        *,
        ordered: bool = True,
    ) -> None:
        self._condition = condition
        self._function = function
        self._arguments: Any = arguments
        self._results: Any = [MISSING] * len(arguments)
        self._total = len(arguments)
        self._errors: dict[int, BaseException] = {}
        self._begun = 0
        #: Heap of tasks that were put back, so that the earliest is sent first.
        self._again: list[int] = []
        self._losses: dict[int, int] = {}
        #: Numbers in the order of arrival, or None to return outcomes in the order of the
        #: arguments.
        self._arrived: deque[int] | None = None if ordered else deque()
        self._left = len(arguments)
        #: True if no caller waits for the unfinished tasks any more.
        self.cancelled = False
        #: Called when all tasks have a result or error.
        self.on_end: Callable[[], None] | None = None

    def __len__(self) -> int:
        return 0 if self.cancelled else self._total - self._begun + len(self._again)

    def take(self, count: int) -> list[int]:
        if self.cancelled:
            return []
        taken = [heappop(self._again) for _ in range(min(count, len(self._again)))]
        end = min(self._begun + count - len(taken), self._total)
        taken.extend(range(self._begun, end))
        self._begun = end
        return taken

    def function(self, number: int) -> Callable[..., Any]:
        del number
        return self._function

    def calls(
        self, numbers: Sequence[int], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[int], Calls]:
        try:
            index(self._function)
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            self.settle(numbers, [(None, error)] * len(numbers))
            return [], (None, [], None)
        return list(numbers), (None, [self._arguments[number] for number in numbers], None)

    def sent(self, numbers: Sequence[int], bundle: str) -> None:
        """Ignore the bundle: without futures, a user cannot cancel single tasks."""

    def end(self, error: BaseException) -> None:
        """Do nothing, since all tasks are added at the start."""

    def measured(self, numbers: Sequence[int], measures: MeasuredCalls) -> None:
        """Ignore measurements: without futures, a user cannot read them."""

    def settle_values(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        results = self._results
        with self._condition:
            for number, value in zip(numbers, values, strict=True):
                results[number] = value
            over = self._count_settled(numbers)
        if over and self.on_end is not None:
            self.on_end()

    def settle(self, numbers: Sequence[int], outcomes: Sequence[ValueOrError]) -> None:
        settled = []
        with self._condition:
            for number, (value, error) in zip(numbers, outcomes, strict=True):
                if self._is_settled(number):
                    continue
                if error is None:
                    self._results[number] = value
                else:
                    self._errors[number] = error
                settled.append(number)
            over = self._count_settled(settled)
        if over and self.on_end is not None:
            self.on_end()

    def _count_settled(self, numbers: Sequence[int]) -> bool:
        """Wake waiting threads, and return whether all tasks have finished. Needs the lock."""
        self._left -= len(numbers)
        if self._arrived is not None:
            self._arrived.extend(numbers)
        self._condition.notify_all()
        return self._left == 0

    def put_back(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if not self.is_over(number):
                heappush(self._again, number)

    def lost(self, number: int) -> int:
        self._losses[number] = self._losses.get(number, 0) + 1
        return self._losses[number]

    def suspects(self, number: int) -> bool:
        return number in self._losses

    def is_over(self, number: int) -> bool:
        return self.cancelled or self._is_settled(number)

    def _is_settled(self, number: int) -> bool:
        return self._results[number] is not MISSING or number in self._errors

    def cancel(self) -> None:
        """Drop all unfinished tasks."""
        with self._condition:
            self.cancelled = True
            self._condition.notify_all()

    # For the thread that iterates ---------------------------------------------------------------

    def outcomes(self, time_left: Callable[[], float | None]) -> Iterator[Outcome]:
        """Iterate over outcomes as they become available.
        ``time_left`` returns seconds or None. Raises TimeoutError, or CancelledError after a
        cancel.
        """
        position = 0
        while not self._is_end(position):
            number = position
            # A result that has already arrived is read without the lock.
            if self._arrived is not None or not self._is_there(position):
                with slot_lent(), display.waiting():
                    awaited = self._await(position, time_left)
                if awaited is None:
                    return
                number = awaited
            error = self._errors.pop(number, None)
            yield [error, self._pop(number)]
            position += 1

    def _is_end(self, position: int) -> bool:
        """Return whether no outcomes are left after the first ``position`` ones."""
        return position >= self._total

    def _is_there(self, position: int) -> bool:
        """Return whether the task at a position exists and has finished."""
        return position < self._total and self._is_settled(position)

    def _pop(self, number: int) -> Any:
        """Remove and return the result of a task."""
        value, self._results[number] = self._results[number], None
        return value

    def _await(self, position: int, time_left: Callable[[], float | None]) -> int | None:
        """Wait for the next outcome, and return the number of its task, or None at the end."""
        with self._condition:
            while not self._is_end(position):
                if self._arrived is not None:
                    if self._arrived:
                        return self._arrived.popleft()
                elif self._is_there(position):
                    return position
                self._wait(time_left)
        return None

    def _wait(self, time_left: Callable[[], float | None]) -> None:
        """Wait for a change. The caller must hold the lock."""
        if self.cancelled:
            raise CancelledError
        left = time_left()
        if left is not None and left <= 0:
            raise TimeoutError
        seconds = INTERRUPTIBLE_S if left is None else min(left, INTERRUPTIBLE_S)
        wait_for_change(self._condition, seconds)

    def collect(self) -> list[Any]:
        """Return the list of all results, or raise the error of the first failed task."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._results  # type: ignore[no-any-return]


# Streamed arguments -------------------------------------------------------------------------------

#: Number of outcomes that are not taken yet, in multiples of the tasks that keep slots busy, at
#: which no more arguments are read.
MOST_UNTAKEN = 4
#: Share of the capacity that has to be free before reading continues, so that it rarely does.
FREE = 0.25


class StreamedCalls(MappedCalls):
    """Tasks for the elements of an iterator, which may be endless."""

    takes_turns = True

    def __init__(
        self,
        condition: threading.Condition,
        function: Callable[..., Any],
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__(condition, function, [], ordered=ordered)
        #: Arguments of each task without an outcome, and results that were not taken, by number.
        self._arguments, self._results = {}, {}
        self._taken = 0
        #: Number of taken outcomes at which reading continues. It is infinite while it does not
        #: wait.
        self._goes_on_at = math.inf
        self._exhausted = False
        self.read_error: BaseException | None = None

    @property
    def stays(self) -> bool:  # type: ignore[override]
        """True if more tasks may be added."""
        return not (self._exhausted or self.cancelled)

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
        self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
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

    # In other threads ---------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Stop reading. Tasks that were added still run."""
        self._exhausted = True

    def end(self, error: BaseException) -> None:
        """Stop reading. The error follows the results of the tasks that were added."""
        self._stop(error)

    def take(self, count: int) -> list[int]:
        taken = super().take(count)
        if self._goes_on_at < math.inf:
            self._wake_reader()
        return taken

    def _wake_reader(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _count_settled(self, numbers: Sequence[int]) -> bool:
        for number in numbers:
            self._arguments.pop(number, None)
        return super()._count_settled(numbers)

    def _is_settled(self, number: int) -> bool:
        return number not in self._arguments

    def _is_end(self, position: int) -> bool:
        if not self._exhausted or position < self._total:
            return False
        if self.read_error is not None:
            raise self.read_error
        return True

    def _pop(self, number: int) -> Any:
        self._taken += 1
        if self._taken >= self._goes_on_at:
            self._wake_reader()
        return self._results.pop(number, None)


# Methods of multiprocessing.Pool ------------------------------------------------------------------

Callback = Callable[[Any], Any]
ErrorCallback = Callable[[BaseException], Any]
_Result = TypeVar("_Result")


class MultiprocessingVerbs(ABC):
    """Methods with the names and arguments of ``multiprocessing.Pool``, without ``chunksize``."""

    @abstractmethod
    def submit(
        self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> CallFuture[_Result]:
        """Run a task, and return its future."""

    @abstractmethod
    def _start(
        self, fn: Callable[..., Any], arguments: list[Any], *, ordered: bool = True
    ) -> MappedCalls:
        """Run a function on many tuples of arguments."""

    @abstractmethod
    def _stream(
        self, fn: Callable[..., Any], rows: Iterator[tuple[Any, ...]], *, ordered: bool
    ) -> StreamedCalls:
        """Run a function on tuples of arguments, reading them as slots become free."""

    @abstractmethod
    def _outcomes(self, many: MappedCalls, timeout: float | None) -> Iterator[Outcome]:
        """Iterate over the outcomes of mapped tasks, and cancel unfinished tasks at the end."""

    @abstractmethod
    def _collect(self, fn: Callable[..., Any], arguments: list[Any]) -> CallFuture:
        """Run a function on many tuples of arguments, and return the future of all results."""

    def apply(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        return _result_of(self.submit(fn, *args, **(kwds or {})))

    def apply_async(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        future = self.submit(fn, *args, **(kwds or {}))
        _add_callbacks(future, callback, error_callback)
        return future

    def map_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        return self.starmap_async(
            fn, ((item,) for item in iterable), chunksize, callback, error_callback
        )

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        return _result_of(self.starmap_async(fn, iterable, chunksize))  # type: ignore[no-any-return]

    def starmap_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        """Return a future of all results. Cancelling it cancels the tasks that have not started."""
        del chunksize
        future = self._collect(fn, [tuple(item) for item in iterable])
        _add_callbacks(future, callback, error_callback)
        return future

    def imap(
        self, fn: Callable[..., _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[_Result]:
        """Iterate over results in the order of the elements."""
        del chunksize
        return self._results_of(fn, iterable, ordered=True)

    def imap_unordered(
        self, fn: Callable[..., _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[_Result]:
        """Iterate over results in the order in which they arrive."""
        del chunksize
        return self._results_of(fn, iterable, ordered=False)

    def _results_of(
        self, fn: Callable[..., Any], iterable: Iterable[Any], *, ordered: bool
    ) -> Iterator[Any]:
        if isinstance(iterable, Sized) and not isinstance(iterable, range):
            many = self._start(fn, [(item,) for item in iterable], ordered=ordered)
            return _Results(self._outcomes(many, None))
        streamed = self._stream(fn, zip(iterable), ordered=ordered)
        results = _Results(self._outcomes(streamed, None))
        weakref.finalize(results, streamed.stop_reading)
        return results


class _Results(Iterator[Any]):
    """Iterator over results. It continues after the error of a failed task."""

    def __init__(self, outcomes: Iterator[Outcome]) -> None:
        self._outcomes, self._lock = outcomes, threading.Lock()

    def __next__(self) -> Any:
        with self._lock:  # several threads may share the results, as with ``multiprocessing``
            outcome = next(self._outcomes)
        error = outcome[0]
        if isinstance(error, StopIteration):
            # It would end the iterator, and the results that follow would be lost (PEP 479).
            raise RuntimeError("the task raised StopIteration") from error  # noqa: TRY004
        if error is not None:
            raise error
        return outcome.pop()


def _result_of(future: CallFuture) -> Any:
    """Wait for the result of a future, and cancel the tasks if the wait is interrupted."""
    try:
        return future.result()
    finally:
        future.cancel()


def _add_callbacks(
    future: CallFuture, callback: Callback | None, error_callback: ErrorCallback | None
) -> None:
    """Make a future call the matching callback before waiting threads wake up."""

    def ended(result: Any, error: BaseException | None) -> None:
        if error is None and callback is not None:
            callback(result)
        elif error is not None and error_callback is not None:
            error_callback(error)

    if callback is not None or error_callback is not None:
        future.tell_first(ended)
