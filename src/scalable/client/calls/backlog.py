"""What waits in the client to be run: single calls, and calls of a function on many arguments."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from scalable.client.calls.futures import CallFuture, Measures, settle
from scalable.protocol.bundles import Calls
from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent

#: One outcome: result and exception, one of which is None.
Outcome = tuple[Any, BaseException | None]


class PendingCalls(Protocol):
    """Calls that wait, each known by a number of its own."""

    profile: bool

    def __len__(self) -> int:
        """How many wait."""

    def take(self, count: int) -> list[Any]:
        """At most so many calls that wait; they wait no more."""

    def function(self, number: Any) -> Callable[..., Any]:
        """What to call."""

    def calls(
        self, numbers: Sequence[Any], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[Any], Calls]:
        """What to send: the calls that are left, and :data:`scalable.protocol.bundles.Calls`.

        Parameters
        ----------
        numbers
            Of the calls.
        index
            Gives the place of a function among those that are sent along.
        """

    def settle(self, numbers: Sequence[Any], outcomes: Sequence[Outcome]) -> None:
        """Calls have ended."""

    def settle_values(self, numbers: Sequence[Any], values: Sequence[Any]) -> None:
        """Calls have ended well, of which nothing was heard before."""

    def measured(self, numbers: Sequence[Any], measures: Sequence[Measures]) -> None:
        """What calls took; told before they are settled."""

    def put_back(self, numbers: Sequence[Any]) -> None:
        """Calls wait again, before all others."""

    def lost(self, number: Any) -> int:
        """The worker was lost that ran a call; how often that has happened to it."""

    def suspects(self, number: Any) -> bool:
        """Whether a worker was lost that may have run a call."""

    def is_over(self, number: Any) -> bool:
        """Whether nobody waits for a call any more."""


class SingleCalls:
    """Calls with a future each."""

    profile = True

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._waiting: deque[CallFuture] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, future: CallFuture) -> None:
        """One more."""
        self._waiting.append(future)

    def take(self, count: int) -> list[CallFuture]:
        """Futures of calls that begin now; cancelled ones are passed over."""
        taken: list[CallFuture] = []
        while self._waiting and len(taken) < count:
            future = self._waiting.popleft()
            if future.running() or future.begin():
                taken.append(future)
        return taken

    def function(self, number: CallFuture) -> Callable[..., Any]:
        """What to call; nothing where it was cancelled in this moment."""
        return (number.call or _NOTHING)[0]

    def calls(
        self, numbers: Sequence[CallFuture], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[CallFuture], Calls]:
        """What to send. A function that cannot be sent fails its calls alone."""
        sent: list[CallFuture] = []
        indexes: list[int] = []
        args: list[Sequence[Any]] = []
        kwargs: list[Mapping[str, Any] | None] = []
        for future in numbers:
            function, positional, named = future.call or _NOTHING
            try:
                indexes.append(index(function))
            except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
                self.settle([future], [(None, error)])
                continue
            sent.append(future)
            args.append(positional)
            kwargs.append(named)
        return sent, (indexes if any(indexes) else None, args, kwargs if any(kwargs) else None)

    def settle(self, numbers: Sequence[CallFuture], outcomes: Sequence[Outcome]) -> None:
        """End futures."""
        settle(
            self._condition,
            [(f, value, error) for f, (value, error) in zip(numbers, outcomes, strict=True)],
        )

    def settle_values(self, numbers: Sequence[CallFuture], values: Sequence[Any]) -> None:
        """End futures with their results."""
        settle(
            self._condition, [(f, value, None) for f, value in zip(numbers, values, strict=True)]
        )

    def measured(self, numbers: Sequence[CallFuture], measures: Sequence[Measures]) -> None:
        """Keep them with the futures."""
        for future, each in zip(numbers, measures, strict=True):
            future.measures = each

    def put_back(self, numbers: Sequence[CallFuture]) -> None:
        """Wait again, before all others."""
        self._waiting.extendleft(f for f in reversed(numbers) if not f.done())

    def lost(self, number: CallFuture) -> int:
        """Count a loss."""
        number.losses += 1
        return number.losses

    def suspects(self, number: CallFuture) -> bool:
        """Whether a loss was counted."""
        return number.losses > 0

    def is_over(self, number: CallFuture) -> bool:
        """Whether its future has ended."""
        return number.done()

    def cancel_all(self) -> None:
        """Cancel what waits, also what was put back meanwhile."""
        while True:
            try:
                future = self._waiting.popleft()
            except IndexError:  # the dispatcher takes from it, too
                return
            future.cancel()


def _nothing() -> None:
    """In place of a call that was cancelled."""


_NOTHING: Any = (_nothing, (), {})
_MISSING: Any = object()


class MappedCalls:
    """A function on many arguments: no future for each, the results in one list.

    Parameters
    ----------
    condition
        Of the pool.
    function
        What is called.
    arguments
        Positional arguments of each call.
    ordered
        Whether results are handed out in the order of the arguments, or as they come.
    """

    profile = False

    def __init__(
        self,
        condition: threading.Condition,
        function: Callable[..., Any],
        arguments: Sequence[Sequence[Any]],
        *,
        ordered: bool = True,
    ) -> None:
        self._condition = condition
        self._function, self._arguments = function, arguments
        self._results: list[Any] = [_MISSING] * len(arguments)
        self._errors: dict[int, BaseException] = {}
        self._begun = 0
        self._again: deque[int] = deque()
        self._losses: dict[int, int] = {}
        self._arrived: deque[int] | None = None if ordered else deque()
        self._left = len(arguments)
        self.cancelled = False
        self.on_end: Callable[[], None] | None = None

    def __len__(self) -> int:
        return 0 if self.cancelled else len(self._arguments) - self._begun + len(self._again)

    def take(self, count: int) -> list[int]:
        """Numbers of calls that begin now."""
        if self.cancelled:
            return []
        taken = [self._again.popleft() for _ in range(min(count, len(self._again)))]
        end = min(self._begun + count - len(taken), len(self._arguments))
        taken.extend(range(self._begun, end))
        self._begun = end
        return taken

    def function(self, number: int) -> Callable[..., Any]:
        """What to call: the same for all."""
        del number
        return self._function

    def calls(
        self, numbers: Sequence[int], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[int], Calls]:
        """What to send. A function that cannot be sent fails them all."""
        try:
            index(self._function)
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            self.settle(numbers, [(None, error)] * len(numbers))
            return [], (None, [], None)
        return list(numbers), (None, [self._arguments[number] for number in numbers], None)

    def measured(self, numbers: Sequence[int], measures: Sequence[Measures]) -> None:
        """Nobody asks for them."""

    def settle_values(self, numbers: Sequence[int], values: Sequence[Any]) -> None:
        """Keep results."""
        results = self._results
        with self._condition:
            for number, value in zip(numbers, values, strict=True):
                results[number] = value
            self._left -= len(numbers)
            if self._arrived is not None:
                self._arrived.extend(numbers)
            over = self._left == 0
            self._condition.notify_all()
        if over and self.on_end is not None:
            self.on_end()

    def settle(self, numbers: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Keep results."""
        with self._condition:
            for number, (value, error) in zip(numbers, outcomes, strict=True):
                if self._results[number] is not _MISSING or number in self._errors:
                    continue
                if error is None:
                    self._results[number] = value
                else:
                    self._errors[number] = error
                self._left -= 1
                if self._arrived is not None:
                    self._arrived.append(number)
            over = self._left == 0
            self._condition.notify_all()
        if over and self.on_end is not None:
            self.on_end()

    def put_back(self, numbers: Sequence[int]) -> None:
        """Wait again, before all others."""
        self._again.extendleft(n for n in reversed(numbers) if not self.is_over(n))

    def lost(self, number: int) -> int:
        """Count a loss."""
        self._losses[number] = self._losses.get(number, 0) + 1
        return self._losses[number]

    def suspects(self, number: int) -> bool:
        """Whether a loss was counted."""
        return number in self._losses

    def is_over(self, number: int) -> bool:
        """Whether its result is there, or nobody waits for it."""
        return self.cancelled or self._results[number] is not _MISSING or number in self._errors

    def cancel(self) -> None:
        """Nobody waits for what is left."""
        with self._condition:
            self.cancelled = True
            self._condition.notify_all()

    # For whoever iterates -----------------------------------------------------------------------

    def outcomes(self, timeout_at: Callable[[], float | None]) -> Iterator[Outcome]:
        """Result and error of each call, as they become available in their order.

        Parameters
        ----------
        timeout_at
            Gives the seconds that may be waited from now, or None.
        """
        results = self._results
        for position in range(len(self._arguments)):
            number = position
            # What is there already needs no lock.
            if self._arrived is not None or results[position] is _MISSING:
                with slot_lent():
                    number = self._await(position, timeout_at)
                error = self._errors.pop(number, None)
                if error is not None:
                    results[number] = None
                    yield None, error
                    continue
            value, results[number] = results[number], None
            yield value, None

    def _await(self, position: int, timeout_at: Callable[[], float | None]) -> int:
        with self._condition:
            while True:
                if self._arrived is not None:
                    if self._arrived:
                        return self._arrived.popleft()
                elif self._results[position] is not _MISSING or position in self._errors:
                    return position
                if self.cancelled:
                    raise _cancelled()
                left = timeout_at()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._condition.wait(
                    INTERRUPTIBLE_S if left is None else min(left, INTERRUPTIBLE_S)
                )

    def collect(self) -> list[Any]:
        """All results; raises the error of the first call that failed. Only once all have ended."""
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._results


def _cancelled() -> BaseException:
    from concurrent.futures import CancelledError

    return CancelledError()
