"""Waiting tasks of one function with many arguments."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from heapq import heappop, heappush
from typing import Any

from scalable.client.calls.backlog import ValueOrError
from scalable.client.calls.measures import MeasuredCalls
from scalable.protocol.bundles import Calls
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent

#: Result of a task that has none.
MISSING: Any = object()
#: Error of a task or None, and its result: a list, so that no other reference to the result exists.
Outcome = list[Any]


class MappedCalls:
    """Waiting tasks of one function. One list has all results instead of a future for each task."""

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
        """Do nothing: all tasks are there."""

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
        """Wake waiting threads, and return whether all tasks have finished. Needs the held lock."""
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
        """Iterate over outcomes as they become available. No reference to an outcome is kept.

        ``time_left`` returns the remaining seconds to wait, or None for no limit. Raises
        TimeoutError if no time is left, and CancelledError if the tasks were cancelled.
        """
        position = 0
        while not self._is_end(position):
            number = position
            # A result that has already arrived is read without the lock.
            if self._arrived is not None or not self._is_there(position):
                with slot_lent():
                    awaited = self._await(position, time_left)
                if awaited is None:
                    return
                number = awaited
            error = self._errors.pop(number, None)
            yield [error, self._pop(number)]
            position += 1

    def _is_end(self, position: int) -> bool:
        """Return whether no outcome follows this number of outcomes."""
        return position >= self._total

    def _is_there(self, position: int) -> bool:
        """Return whether a task was made and has a result or error."""
        return position < self._total and self._is_settled(position)

    def _pop(self, number: int) -> Any:
        """Return the result of a task, and drop it."""
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
        """Wait for a change. Needs the held lock."""
        if self.cancelled:
            raise CancelledError
        left = time_left()
        if left is not None and left <= 0:
            raise TimeoutError
        self._condition.wait(INTERRUPTIBLE_S if left is None else min(left, INTERRUPTIBLE_S))

    def collect(self) -> list[Any]:
        """Return the list of all results, or raise the error of the first failed task."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._results  # type: ignore[no-any-return]
