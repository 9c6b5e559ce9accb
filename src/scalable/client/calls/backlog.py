"""Calls that wait in the client until they are sent to a worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import chain, count, repeat
from typing import Any, Protocol

from scalable.client.calls.futures import CallFuture, begun, settle
from scalable.client.calls.measures import MeasuredCalls
from scalable.protocol.bundles import Calls

#: Result and exception of a call; one of the two is None.
ValueOrError = tuple[Any, BaseException | None]


class PendingCalls(Protocol):
    """Waiting calls. A *number* (an index, or a future) identifies each call."""

    #: Whether the client wants the measurements of each call.
    profile: bool
    #: Whether other groups take turns with this one: it may never become empty.
    takes_turns: bool

    @property
    def stays(self) -> bool:
        """Whether calls may be added, so that the group keeps its place while none waits."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""

    def take(self, count: int) -> list[Any]:
        """Remove at most ``count`` calls from the waiting calls, and return their numbers."""

    def function(self, number: Any) -> Callable[..., Any]:
        """Return the function of a call."""

    def calls(
        self, numbers: Sequence[Any], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[Any], Calls]:
        """Return the calls to send, as numbers and as :data:`scalable.protocol.bundles.Calls`.

        A call whose function cannot be pickled fails with the error and is left out.

        Parameters
        ----------
        numbers
            Numbers of the calls.
        index
            Function that returns the index of a call's function in the bundle's list of functions.
        """

    def sent(self, numbers: Sequence[Any], bundle: str) -> None:
        """Note the key of the bundle with which calls are sent."""

    def settle(self, numbers: Sequence[Any], outcomes: Sequence[ValueOrError]) -> None:
        """Store the results or errors of calls; skip calls that already have one."""

    def settle_values(self, numbers: Sequence[Any], values: Sequence[Any]) -> None:
        """Store the results of calls that have no result or error yet."""

    def measured(self, numbers: Sequence[Any], measures: MeasuredCalls) -> None:
        """Store the measurements of calls, before the results of the calls are stored."""

    def put_back(self, numbers: Sequence[Any]) -> None:
        """Put calls back among the waiting calls, in their order."""

    def lost(self, number: Any) -> int:
        """Count a worker that was lost while it ran a call; return the call's count."""

    def suspects(self, number: Any) -> bool:
        """Return whether :meth:`lost` has counted a lost worker for a call."""

    def end(self, error: BaseException) -> None:
        """Let no more calls come; who waits for others than those that are there gets the error."""

    def is_over(self, number: Any) -> bool:
        """Return whether a call has a result or error, or nobody waits for it any more."""


class SingleCalls:
    """Waiting calls that have one future each; the future is the call's number.

    Parameters
    ----------
    condition
        Condition that the futures of the executor share.
    """

    profile = stays = True
    takes_turns = False

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._waiting: deque[CallFuture] = deque()
        #: Time of its making, number and future of each call that was put back; a heap, so that the
        #: earliest is sent first.
        self._again: list[tuple[float, int, CallFuture]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, future: CallFuture) -> None:
        """Add a call at the end of the waiting calls."""
        self._waiting.append(future)

    def position(self, future: CallFuture) -> int | None:
        """Return the number of waiting calls before a call; None if the call does not wait."""
        waiting = chain((future for _, _, future in sorted(self._again)), list(self._waiting))
        return next((i for i, each in enumerate(waiting) if each is future), None)

    def take(self, count: int) -> list[CallFuture]:
        """Remove at most ``count`` calls, and return their futures; drop cancelled calls."""
        taken: list[CallFuture] = []
        while some := self._removed(count - len(taken)):
            taken += begun(self._condition, some)
        return taken

    def _removed(self, count: int) -> list[CallFuture]:
        """Remove at most ``count`` calls, those that were put back first.

        Several threads may remove calls, so that one of them finds none where some were.
        """
        removed: list[CallFuture] = []
        with suppress(IndexError):
            while self._again and len(removed) < count:
                removed.append(heappop(self._again)[-1])
        with suppress(IndexError):
            for _ in range(count - len(removed)):
                removed.append(self._waiting.popleft())  # noqa: PERF401 - until there is none
        return removed

    def function(self, number: CallFuture) -> Callable[..., Any]:
        """Return the function of a call, or an empty function if the call has been cancelled."""
        return (number.call or _CANCELLED)[0]

    def calls(
        self, numbers: Sequence[CallFuture], index: Callable[[Callable[..., Any]], int]
    ) -> tuple[list[CallFuture], Calls]:
        """Return the calls to send, as :meth:`PendingCalls.calls` does."""
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
        """Note the key of their bundle in the futures of calls."""
        for future in numbers:
            future.bundle = bundle

    def settle(self, numbers: Sequence[CallFuture], outcomes: Sequence[ValueOrError]) -> None:
        """Set the results or errors of futures."""
        settle(
            self._condition,
            [(f, value, error) for f, (value, error) in zip(numbers, outcomes, strict=True)],
        )

    def settle_values(self, numbers: Sequence[CallFuture], values: Sequence[Any]) -> None:
        """Set the results of futures."""
        settle(self._condition, zip(numbers, values, repeat(None)))

    def measured(self, numbers: Sequence[CallFuture], measures: MeasuredCalls) -> None:
        """Store measurements in the futures."""
        for position, future in enumerate(numbers):
            future.measures = measures, position

    def put_back(self, numbers: Sequence[CallFuture]) -> None:
        """Put calls back among the waiting calls, in their order."""
        for future in numbers:
            if not future.done():
                future.bundle = None
                heappush(self._again, (future.made_at, next(self._numbers), future))

    def lost(self, number: CallFuture) -> int:
        """Count a worker that was lost while it ran a call; return the call's count."""
        number.losses += 1
        return number.losses

    def suspects(self, number: CallFuture) -> bool:
        """Return whether :meth:`lost` has counted a lost worker for a call."""
        return number.losses > 0

    def end(self, error: BaseException) -> None:
        """Do nothing: nobody waits for calls that were not made."""

    def is_over(self, number: CallFuture) -> bool:
        """Return whether the future of a call is done."""
        return number.done()

    def cancel_all(self) -> None:
        """Cancel all waiting calls, including calls that are put back meanwhile."""
        while some := self._removed(len(self)):
            for future in some:
                future.cancel()


def _do_nothing() -> None:
    """Do nothing; this function replaces the function of a cancelled call."""


_CANCELLED: Any = (_do_nothing, (), {})
