"""Tasks that were taken from the backlog, but whose arguments are not on the workers yet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from scalable.client.calls.backlog import PendingCalls
from scalable.client.calls.futures import CallFuture
from scalable.client.calls.packing import PackedCalls
from scalable.client.scheduler_line import SchedulerLine
from scalable.errors import ClusterError
from scalable.protocol.messages import Reference

logger = logging.getLogger("scalable.client")

#: Seconds between two attempts to upload a lost argument, and between two checks of a result that
#: is computed again.
AGAIN_S = 0.5
#: Number of attempts to upload a lost argument.
ATTEMPTS = 10


@dataclass(eq=False)
class _Held:
    """Tasks with the same missing arguments."""

    pending: PendingCalls
    numbers: list[Any]

    def left(self) -> list[Any]:
        """Return the tasks for which a caller still waits."""
        return [number for number in self.numbers if not self.pending.is_over(number)]


@dataclass
class _Renewal:
    """The renewal of a lost argument."""

    held: list[_Held] = field(default_factory=list)
    attempts: int = 0


class HeldCalls:
    """Tasks that wait for Dask futures, or for a lost argument to be on the workers again.

    A task that waits here holds up no other task, and takes no slot. Everything runs in the
    client's event loop.
    """

    def __init__(
        self, line: SchedulerLine, put_back: Callable[[PendingCalls, list[Any]], None]
    ) -> None:
        self._line, self._put_back = line, put_back
        self._held: set[_Held] = set()
        self._renewals: dict[Reference, _Renewal] = {}

    def __len__(self) -> int:
        """Return the number of groups of tasks that wait for the same arguments."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """True if no caller waits for any of the tasks."""
        return not any(held.left() for held in self._held)

    @property
    def unfinished(self) -> int:
        """Number of tasks for which a caller waits. May be read in any thread."""
        return sum(len(held.left()) for held in list(self._held))

    def holds(self, number: Any) -> bool:
        """Return whether a task waits for an argument."""
        return any(each is number for held in self._held for each in held.numbers)

    def hold(self, pending: PendingCalls, packed: PackedCalls) -> bool:
        """Return whether tasks have to wait for an argument. Put them back once it is there."""
        for key, each in packed.references.items():
            status = packed.futures[key].status
            held = _Held(pending, packed.numbers)
            if status == "pending":
                release = partial(self._line.call_soon, self._release, held)
                packed.futures[key].add_done_callback(lambda _, r=release: r())
            elif status == "lost":  # and computed again
                self._line.call_later(AGAIN_S, partial(self._release, held))
            elif status == "cancelled" and isinstance(each, Reference):
                self._renew(each, held)
            else:
                continue  # a failed argument too: Dask passes the error on to the task
            logger.debug("%d calls wait for argument %s (%s)", len(held.numbers), key, status)
            self._held.add(held)
            return True
        return False

    def _release(self, held: _Held) -> None:
        if held in self._held:
            self._held.discard(held)
            self._put_back(held.pending, held.numbers)

    def _renew(self, reference: Reference, held: _Held) -> None:
        if reference not in self._renewals:
            self._renewals[reference] = _Renewal()
            self._line.call_soon(self._bring, reference)
        self._renewals[reference].held.append(held)

    async def _bring(self, reference: Reference) -> None:
        """Bring a lost argument to the workers again, and put back the tasks that wait for it."""
        renewal = self._renewals[reference]
        renewal.attempts += 1
        failure: ClusterError | None = None
        if any(held.left() for held in renewal.held):
            logger.debug("argument %s is brought to the workers again", reference.future.key)
            try:
                await reference.bring_again(reference)
            except Exception as error:  # noqa: BLE001 - no worker is connected, or the user's code
                if renewal.attempts < ATTEMPTS:
                    self._line.call_later(AGAIN_S, partial(self._bring, reference))
                    return
                words = (
                    f"an argument was lost with its worker, and bringing it again failed: {error!r}"
                )
                failure = ClusterError(words)
        del self._renewals[reference]
        for held in renewal.held:
            if failure is not None:
                held.pending.settle(held.numbers, [(None, failure)] * len(held.numbers))
            self._release(held)

    def cancel_all(self) -> None:
        """Cancel the tasks that have a future. Their owner drops the others."""
        for held in list(self._held):
            for number in held.left():
                if isinstance(number, CallFuture):
                    number.cancel()

    def close(self, error: BaseException) -> None:
        """Fail all tasks."""
        for held in list(self._held):
            held.pending.settle(held.numbers, [(None, error)] * len(held.numbers))
        self._held.clear()
