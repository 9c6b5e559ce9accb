"""Calls that wait in the client to be run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from scalable.client.calls.futures import CallFuture, Measures, settle
from scalable.protocol.bundles import Calls

#: Result and exception of a call; one of the two is None.
ValueOrError = tuple[Any, BaseException | None]


class PendingCalls(Protocol):
    """Calls that wait, each known by a number of its own (an index, or any other object)."""

    #: Whether the client wants the measurements of each call.
    profile: bool

    def __len__(self) -> int:
        """Return the number of calls that wait."""

    def take(self, count: int) -> list[Any]:
        """Remove at most ``count`` calls, and return their numbers."""

    def function(self, number: Any) -> Callable[..., Any]:
        """Return the function of a call."""

    def calls(
        self, numbers: Sequence[Any], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[Any], Calls]:
        """Return the calls to send: their numbers, and :data:`scalable.protocol.bundles.Calls`.

        A call whose function cannot be pickled is settled with the error, and left out.

        Parameters
        ----------
        numbers
            Numbers of the calls.
        index
            Returns the index of a function among the functions of the bundle.
        """

    def settle(self, numbers: Sequence[Any], outcomes: Sequence[ValueOrError]) -> None:
        """Store the outcomes of calls; calls that are settled already stay as they are."""

    def settle_values(self, numbers: Sequence[Any], values: Sequence[Any]) -> None:
        """Store the results of calls that are not settled yet."""

    def measured(self, numbers: Sequence[Any], measures: Sequence[Measures]) -> None:
        """Store the measurements of calls, before they are settled."""

    def put_back(self, numbers: Sequence[Any]) -> None:
        """Have calls wait again, before all others."""

    def lost(self, number: Any) -> int:
        """Count the loss of a worker that ran a call, and return the losses of that call."""

    def suspects(self, number: Any) -> bool:
        """Return whether a worker was lost that may have been running a call."""

    def is_over(self, number: Any) -> bool:
        """Return whether a call is settled or nobody waits for it."""


class SingleCalls:
    """Calls with a future each.

    Parameters
    ----------
    condition
        Condition that the futures of the executor share.
    """

    profile = True

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._waiting: deque[CallFuture] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, future: CallFuture) -> None:
        """Add a call."""
        self._waiting.append(future)

    def take(self, count: int) -> list[CallFuture]:
        """Remove at most ``count`` calls, and return their futures; cancelled ones are dropped."""
        taken: list[CallFuture] = []
        while self._waiting and len(taken) < count:
            future = self._waiting.popleft()
            if future.running() or future.begin():
                taken.append(future)
        return taken

    def function(self, number: CallFuture) -> Callable[..., Any]:
        """Return the function of a call, or one that does nothing where it was just cancelled."""
        return (number.call or _CANCELLED)[0]

    def calls(
        self, numbers: Sequence[CallFuture], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[CallFuture], Calls]:
        """Return the calls to send, as :meth:`PendingCalls.calls` does."""
        sent: list[CallFuture] = []
        indexes: list[int] = []
        args: list[Sequence[Any]] = []
        kwargs: list[Mapping[str, Any] | None] = []
        for future in numbers:
            function, positional, named = future.call or _CANCELLED
            try:
                indexes.append(index(function))
            except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
                self.settle([future], [(None, error)])
                continue
            sent.append(future)
            args.append(positional)
            kwargs.append(named)
        return sent, (indexes if any(indexes) else None, args, kwargs if any(kwargs) else None)

    def settle(self, numbers: Sequence[CallFuture], outcomes: Sequence[ValueOrError]) -> None:
        """End futures with results or errors."""
        settle(
            self._condition,
            [(f, value, error) for f, (value, error) in zip(numbers, outcomes, strict=True)],
        )

    def settle_values(self, numbers: Sequence[CallFuture], values: Sequence[Any]) -> None:
        """End futures with their results."""
        settle(self._condition, zip(numbers, values, repeat(None)))

    def measured(self, numbers: Sequence[CallFuture], measures: Sequence[Measures]) -> None:
        """Store measurements in the futures."""
        for future, each in zip(numbers, measures, strict=True):
            future.measures = each

    def put_back(self, numbers: Sequence[CallFuture]) -> None:
        """Have calls wait again, before all others."""
        self._waiting.extendleft(f for f in reversed(numbers) if not f.done())

    def lost(self, number: CallFuture) -> int:
        """Count the loss of a worker that ran a call."""
        number.losses += 1
        return number.losses

    def suspects(self, number: CallFuture) -> bool:
        """Return whether a loss was counted."""
        return number.losses > 0

    def is_over(self, number: CallFuture) -> bool:
        """Return whether the future of a call has ended."""
        return number.done()

    def cancel_all(self) -> None:
        """Cancel the calls that wait, also those that are put back meanwhile."""
        while True:
            try:
                future = self._waiting.popleft()
            except IndexError:  # the dispatcher takes calls, too
                return
            future.cancel()


def _do_nothing() -> None:
    """Stand in for the function of a call that was cancelled."""


_CANCELLED: Any = (_do_nothing, (), {})
