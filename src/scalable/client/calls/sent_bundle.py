"""A bundle that was sent, and the state of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from scalable.client.calls.backlog import PendingCalls


@dataclass
class SentBundle:
    """Calls that were sent together.

    Attributes
    ----------
    key, future
        Key and future of the Dask task.
    pending
        Pending calls from which the calls of the bundle were taken.
    numbers
        Numbers of the calls within ``pending``.
    open
        Positions of the calls whose outcome is not known.
    heard_at
        Time of the latest message about the bundle, in seconds of the monotonic clock.
    suspected
        Whether the bundle's call may have killed a worker; its start is then reported first.
    begun
        Whether the bundle is known to have begun.
    withdrawn
        Whether the worker was asked to give back the calls if the bundle has not begun.
    over
        Whether all calls of the bundle have been run.
    renewable
        Whether the bundle has arguments that can be uploaded again if they are lost.
    refusal_counts
        Whether a refusal of the bundle for lack of workers means that its pool has none. The
        refusal may come from a call whose result is an argument.
    first_tries
        Position -> name of the first try, for calls that were sent before.
    kept
        Positions of the calls whose results stay on the worker until they are fetched.
    """

    key: str
    pending: PendingCalls
    numbers: list[Any]
    open: set[int]
    heard_at: float
    suspected: bool
    begun: bool = False
    withdrawn: bool = False
    over: bool = False
    renewable: bool = False
    refusal_counts: bool = True
    first_tries: dict[int, str] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    future: Future[Any] | None = None
    _positions: dict[Any, int] | None = field(default=None, init=False, repr=False)

    def position_of(self, number: Any) -> int:
        """Return the position of a call; the first question alone looks at all calls."""
        if self._positions is None:
            self._positions = {each: position for position, each in enumerate(self.numbers)}
        return self._positions[number]

    def left(self) -> list[int]:
        """Return the positions of the calls for which somebody still waits."""
        return sorted(p for p in self.open if not self.pending.is_over(self.numbers[p]))

    def fail(self, positions: list[int], error: BaseException) -> None:
        """Let calls of the bundle fail with an error.

        Parameters
        ----------
        positions
            Positions of the calls in the bundle.
        error
            Error of each of these calls.
        """
        numbers = [self.numbers[position] for position in positions]
        self.pending.settle(numbers, [(None, error)] * len(numbers))
