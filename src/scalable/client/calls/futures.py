"""Futures of calls in a pool: real ``concurrent.futures.Future`` s, of which there may be many."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from typing import Any

from scalable.protocol.lending import INTERRUPTIBLE_S, slot_lent
from scalable.protocol.measured import PROFILE

#: What a call took: name and tag, the worker's name, seconds that the arguments took to come,
#: when it began (seconds since 1970), its seconds and CPU seconds, and the worker's peak memory.
Measures = tuple[str, str, str, float, float, float, float, int | None]
_OVER = (CANCELLED_AND_NOTIFIED, FINISHED)


_here = threading.local()


class CallFuture(Future[Any]):
    """The future of one call.

    All futures of a pool share one condition: a lock and a list of waiters for each would take
    longer to make than most calls take to run, and more memory than their arguments.

    Parameters
    ----------
    condition
        Of the pool.
    call
        What is called: function, positional and keyword arguments.
    on_cancel
        Called with the future when it is cancelled while it runs.
    """

    def __init__(
        self,
        condition: threading.Condition,
        call: tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]] | None = None,
        on_cancel: Callable[[CallFuture], None] | None = None,
    ) -> None:
        # In place of Future's own, which makes a condition.
        self._condition = condition
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[Any]], Any]] = []
        self.call = call
        self._on_cancel = on_cancel
        self.losses = 0
        self.measures: Measures | None = None
        self._made_at = time.time()

    # Waiting ------------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned; raises what it raised. See ``concurrent.futures.Future``."""
        self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - no cycle by the traceback
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None. See ``concurrent.futures.Future``."""
        self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        if self._state not in _OVER:
            with slot_lent():
                self._wait_long(timeout)
        if self._state != FINISHED:
            raise CancelledError

    def _wait_long(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._state not in _OVER:  # the condition tells of other futures too
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                # Not for ever at once: where this is within a call, that may be interrupted.
                self._condition.wait(
                    INTERRUPTIBLE_S if left is None else min(left, INTERRUPTIBLE_S)
                )

    def get(self, timeout: float | None = None) -> Any:
        """The result, as ``multiprocessing.pool.AsyncResult`` names it."""
        return self.result(timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended, or for so many seconds."""
        try:
            self._wait(timeout)
        except (TimeoutError, CancelledError):
            return

    def ready(self) -> bool:
        """Whether the call has ended."""
        return self.done()

    def successful(self) -> bool:
        """Whether the call has ended without an exception; ValueError where it has not ended."""
        if not self.done():
            raise ValueError("the call has not ended")
        return self._state == FINISHED and self._exception is None

    def __reduce__(self) -> Any:
        raise TypeError(
            "the future of a call in a pool cannot be sent: give it to submit() of that pool as an "
            "argument by itself, or send its result()"
        )

    def profile(self) -> dict[str, Any]:
        """What the call took, with the names and units of the rows of ``tasks.jsonl``.

        Returns
        -------
        dict
            ``task_name``, ``tag``, ``worker``, ``state``, ``timestamp`` (its end), ``queued_s``,
            ``transfer_s``, ``duration_s``, ``cpu_s`` (seconds) and ``peak_memory`` (bytes; of the
            worker's process until then). None where it was not measured: the call was cancelled,
            or its worker was lost.

        Raises
        ------
        ValueError
            When the call has not ended.
        """
        if not self.done():
            raise ValueError("the call has not ended")
        state = "cancelled" if self._state != FINISHED else "succeeded"
        state = "failed" if self._exception is not None else state
        if self.measures is None:
            return dict.fromkeys(PROFILE) | {"state": state}
        name, tag, worker, transfer_s, began, duration_s, cpu_s, memory = self.measures
        queued_s = max(0.0, began - self._made_at - transfer_s)
        values = (name, tag or None, worker, state, began + duration_s)
        return dict(
            zip(
                PROFILE,
                (*values, queued_s, transfer_s, duration_s, cpu_s, memory),
                strict=True,
            )
        )

    # Ending -------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the call, also where it runs: its worker is freed. False where it has ended."""
        with self._condition:
            if self._state in _OVER:
                return self._state != FINISHED
            was_running = self._state == RUNNING
            self._state = CANCELLED_AND_NOTIFIED
            for waiter in self._waiters:
                waiter.add_cancelled(self)
            self._condition.notify_all()
        self.call = None
        if was_running and self._on_cancel is not None:
            self._on_cancel(self)
        self._invoke_callbacks()  # type: ignore[attr-defined]
        return True

    def begin(self) -> bool:
        """Mark as running; False where it was cancelled."""
        with self._condition:
            if self._state != PENDING:
                return False
            self._state = RUNNING
            return True


def settle(
    condition: threading.Condition,
    outcomes: Iterable[tuple[CallFuture, Any, BaseException | None]],
) -> None:
    """End futures of one pool, all at once.

    Parameters
    ----------
    condition
        Of the pool.
    outcomes
        Future, result and exception. One that has ended already stays as it is.
    """
    ended = []
    with condition:
        for future, result, error in outcomes:
            if future._state in _OVER:
                continue
            future._result, future._exception, future._state = result, error, FINISHED
            future.call = None
            if future._waiters:
                for waiter in future._waiters:
                    waiter.add_exception(future) if error is not None else waiter.add_result(future)
            if future._done_callbacks:
                ended.append(future)
        condition.notify_all()
    _call_back(ended)


def _call_back(ended: Iterable[CallFuture]) -> None:
    """Tell who waits for futures. One after another: each may end the next of a long chain."""
    if getattr(_here, "ended", None) is not None:
        _here.ended.extend(ended)
        return
    _here.ended = waiting = deque(ended)
    try:
        while waiting:
            waiting.popleft()._invoke_callbacks()  # type: ignore[attr-defined]
    finally:
        _here.ended = None
