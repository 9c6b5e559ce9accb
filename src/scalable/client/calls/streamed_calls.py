"""Waiting calls of one function whose arguments are read as slots need them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalable.client.calls.mapped_calls import MISSING, MappedCalls
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent

#: Number of outcomes that nobody has taken yet, in multiples of the calls that keep slots busy,
#: at which no more arguments are read.
MOST_UNTAKEN = 4


class _Results(dict[int, Any]):
    def __missing__(self, number: int) -> Any:
        return MISSING


class StreamedCalls(MappedCalls):
    """Calls with the elements of an iterable, which may be endless; a thread reads them.

    Parameters
    ----------
    condition, function, ordered
        As in :class:`MappedCalls`.
    """

    def __init__(
        self,
        condition: threading.Condition,
        function: Callable[..., Any],
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__(condition, function, [], ordered=ordered)
        self._arguments, self._results = {}, _Results()
        self._taken = 0
        self._exhausted = False
        self._read_error: BaseException | None = None

    @property
    def stays(self) -> bool:  # type: ignore[override]
        """Whether more calls may be added."""
        return not (self._exhausted or self.cancelled)

    # In the thread that reads -------------------------------------------------------------------

    def read(
        self,
        iterator: Iterator[Any],
        prepared: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        lookahead: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """Read an iterator to its end, but never far ahead of the workers, or of who takes results.

        Parameters
        ----------
        iterator
            Argument of each call.
        prepared
            Function that returns the arguments of a call as they are sent.
        lookahead
            Function that returns how many calls should wait.
        wake
            Function to call after a call has been added.
        """
        error: BaseException | None = None
        try:
            while self._has_room(lookahead):
                self._add(prepared((next(iterator),)))
                wake()
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - next() of the results raises it
            error = raised
        with self._condition:
            self._exhausted, self._read_error = True, error
            self._condition.notify_all()

    def _has_room(self, lookahead: Callable[[], int]) -> bool:
        """Wait until a call may be added; return False if nobody wants any more."""
        with self._condition:
            while not self.cancelled and not self._exhausted:
                enough = lookahead()
                if len(self) < enough and self._total - self._taken < MOST_UNTAKEN * enough:
                    return True
                self._condition.wait(INTERRUPTIBLE_S)
        return False

    def _add(self, row: tuple[Any, ...]) -> None:
        with self._condition:
            self._arguments[self._total] = row
            self._left += 1
            self._total += 1
            self._condition.notify_all()

    # In other threads ---------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Read no more; the calls that were added still run."""
        self._exhausted = True

    def _count_settled(self, numbers: Sequence[int]) -> bool:
        for number in numbers:
            self._arguments.pop(number, None)
        return super()._count_settled(numbers)

    def _has(self, position: int, time_left: Callable[[], float | None]) -> bool:
        if position >= self._total and not self._exhausted:
            with slot_lent(), self._condition:
                while position >= self._total and not self._exhausted:
                    self._wait(time_left)
        if position >= self._total and self._read_error is not None:
            raise self._read_error
        return position < self._total

    def _pop(self, number: int) -> Any:
        self._taken += 1
        return self._results.pop(number, None)
