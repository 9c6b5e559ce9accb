"""Tasks that take the results of other tasks of the same executor."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from scalable.client.calls.futures import CallFuture, settle


class DependentCalls:
    """Tasks that wait until the futures among their arguments are done."""

    def __init__(
        self,
        condition: threading.Condition,
        begin: Callable[[CallFuture], None],
        line: Any,
        uploaded: Callable[[Iterable[Any]], tuple[Any, ...]],
    ) -> None:
        # ``begin`` puts a task with complete arguments into the backlog (the tasks to send).
        # ``uploaded`` returns arguments with the large ones replaced by references.
        self._condition, self._begin = condition, begin
        self._line, self._uploaded = line, uploaded
        self._waiting: set[CallFuture] = set()

    @property
    def idle(self) -> bool:
        """True if no task waits for the result of another task."""
        return all(future.done() for future in list(self._waiting))

    def cancel_all(self) -> None:
        """Cancel the tasks that wait for the result of another task."""
        for future in list(self._waiting):
            future.cancel()

    def add(self, future: CallFuture) -> None:
        """Put a task into the backlog, at once or when all futures among its arguments are done."""
        _, args, kwargs = future.call or (None, (), {})
        needed = [a for a in itertools.chain(args, kwargs.values()) if isinstance(a, CallFuture)]
        if not needed:
            self._begin(future)
            return
        self._waiting.add(future)
        left, lock = itertools.count(len(needed) - 1, -1), threading.Lock()

        def ended(_: Any) -> None:
            with lock:
                if next(left):
                    return
            try:
                self._begin_with_results(future)
            finally:
                self._waiting.discard(future)

        for other in needed:
            # First the callback: it counts as a user of the result here, until the task is a taker.
            other.add_done_callback(ended)
            if other.home is not None and other.home.is_near(self._line):
                other.takers += 1

    def _begin_with_results(self, future: CallFuture) -> None:
        if future.call is None:
            return  # already cancelled
        function, args, kwargs = future.call
        try:
            future.call = (
                function,
                self._uploaded(map(self._value, args)),
                dict(zip(kwargs, self._uploaded(map(self._value, kwargs.values())), strict=True)),
            )
        except BaseException as error:  # noqa: BLE001 - the error of the call that it waited for
            settle(self._condition, [(future, None, error)])
            return
        self._begin(future)

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, CallFuture):
            return argument
        kept, home = argument.kept, argument.home
        near = kept is not None and home is not None and home.is_near(self._line)
        return kept if near else argument.result()
