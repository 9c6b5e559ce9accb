"""A bundle that was sent, and the state of its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from scalable.client.calls.backlog import PendingCalls


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
        """Return the position of a task. Only the first request searches all tasks."""
        if self._positions is None:
            self._positions = {each: position for position, each in enumerate(self.numbers)}
        return self._positions[number]

    def left(self) -> list[int]:
        """Return the positions of the tasks for which a caller still waits."""
        return sorted(p for p in self.open if not self.pending.is_over(self.numbers[p]))

    def fail(self, positions: list[int], error: BaseException) -> None:
        """Fail the tasks at these positions with an error."""
        numbers = [self.numbers[position] for position in positions]
        self.pending.settle(numbers, [(None, error)] * len(numbers))
