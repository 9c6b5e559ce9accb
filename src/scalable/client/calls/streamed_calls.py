"""Waiting tasks of one function whose arguments are read while tasks run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalable.client.calls.mapped_calls import MappedCalls
from scalable.protocol.lending import INTERRUPTIBLE_S

#: Number of outcomes that are not taken yet, in multiples of the tasks that keep slots busy, at
#: which no more arguments are read.
MOST_UNTAKEN = 4
#: Share of the capacity that has to be free before reading continues, so that it rarely does.
FREE = 0.25


class StreamedCalls(MappedCalls):
    """Tasks with the elements of an iterator, which may be endless.

    Arguments are kept until their task has finished, and results until they are taken.
    """

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
        """Read an iterator to its end, but only as far ahead as ``most`` allows.

        ``most`` returns how many tasks may wait, and how many outcomes may be left to be taken.
        ``wake`` is called after each added task. An error of the iterator is kept in
        ``read_error``, and follows the results of the tasks before it.
        """
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
        """Add at most ``room`` tasks, and return False if no more are to be read."""
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
