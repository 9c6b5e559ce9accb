"""Runs the calls of a bundle on a worker, one after another, and answers while it goes on."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.sizeof
from distributed import get_worker

from scalable.cluster.calls.messages import (
    LARGE,
    dump,
    dump_error,
    load_calls,
    load_function,
)

logger = logging.getLogger("scalable.cluster")

#: What has ended is told at least so often while a bundle goes on: that much would be run again if
#: the worker were lost.
TELL_S = 0.01
#: A bundle that runs for longer gives back what it has not begun: other slots may be free.
OVERDUE_S = 0.05
#: Looks for calls that run longer than they may, at most so far apart.
LOOK_S = 0.25
#: An interrupted call gets so long to end before its worker is given up.
INTERRUPT_GRACE_S = 2.0
_NOBODY = -1

#: Kinds of outcome: the value itself, its pickle, an error, a value that stays on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})

OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
INTERRUPT = "scalable-interrupt"
TIMED_OUT = "scalable-timed-out"

_running: dict[str, BundleRun] = {}


class CallInterrupted(BaseException):
    """Raised within a call that was cancelled or ran for too long."""


def run_bundle(
    header: Mapping[str, Any], payload: bytes, references: Mapping[Any, Any]
) -> dict[int, Any] | None:
    """Run a bundle in a thread of a Dask worker.

    Parameters
    ----------
    header
        ``key``, ``client``, ``functions`` (digest and bytes of each), ``timeout_s`` or None,
        ``profile``: whether each call's numbers are wanted.
    payload
        The calls: for each the number of its function, positional and keyword arguments.
    references
        What the futures within the arguments stand for.

    Returns
    -------
    dict or None
        Values that are too large to be told, by the number of their call.
    """
    worker = get_worker()
    worker.stream_handlers.setdefault(INTERRUPT, interrupt)
    run = BundleRun(worker, header, load_calls(payload, references))
    _running[run.key] = run
    try:
        return run.run() or None
    finally:
        del _running[run.key]


def interrupt(key: str, number: int) -> None:
    """End one call of a bundle that runs here; nothing where it has ended."""
    run = _running.get(key)
    if run is not None:
        run.interrupt(number)


class BundleRun:
    """One bundle while it runs.

    Parameters
    ----------
    worker
        The Dask worker.
    header, calls
        As in :func:`run_bundle`.
    """

    def __init__(self, worker: Any, header: Mapping[str, Any], calls: Sequence[Any]) -> None:
        self.key: str = header["key"]
        self._client: str = header["client"]
        self._functions: Sequence[tuple[bytes, bytes]] = header["functions"]
        self._timeout_s: float | None = header["timeout_s"]
        self._profile: bool = header["profile"]
        self._worker, self._calls = worker, calls
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._next, self._end = 0, len(calls)
        self._skipped: set[int] = set()
        self._current = self._interrupting = _NOBODY
        self._began = self._told_at = 0.0
        self._kept: dict[int, Any] = {}
        self._untold = _Outcomes()

    # In the thread that runs the calls --------------------------------------------------------

    def run(self) -> dict[int, Any]:
        """Run every call that is not given back; the values that stay here."""
        if len(self._calls) > 1 or self._timeout_s is not None:
            self._watch_after(OVERDUE_S)
        self._told_at = time.perf_counter()
        while (number := self._take()) is not None:
            self._run_call(number)
            if time.perf_counter() - self._told_at > TELL_S:
                self._tell()
        self._tell(over=True)
        return self._kept

    def _take(self) -> int | None:
        with self._lock:
            while self._next in self._skipped:
                self._next += 1
            if self._next >= self._end:
                self._end = self._next
                return None
            number = self._next
            self._next += 1
        return number

    def _run_call(self, number: int) -> None:
        index, args, kwargs = self._calls[number]
        value, error = None, None
        cpu = time.thread_time() if self._profile else 0.0
        stamp = time.time() if self._profile else 0.0
        self._began = began = time.perf_counter()
        try:
            self._current = number
            function = load_function(*self._functions[index])
            value = function(*args, **kwargs) if kwargs else function(*args)
            self._current = _NOBODY
            self._await_interrupt(number)
        except CallInterrupted:
            self._current = self._interrupting = _NOBODY
            return
        except BaseException as raised:  # noqa: BLE001 - one failing call fails that call alone
            self._current = _NOBODY
            if not self._survives(number):
                return
            error = raised
        self._began = 0.0
        profile = None
        if self._profile:
            ended = time.perf_counter()
            profile = (stamp, ended - began, time.thread_time() - cpu)
        self._note(number, value, error, profile)

    def _survives(self, number: int) -> bool:
        try:
            self._await_interrupt(number)
        except CallInterrupted:
            self._interrupting = _NOBODY
            return False
        return True

    def _await_interrupt(self, number: int) -> None:
        """An interrupt that is on its way must not reach the next call."""
        while self._interrupting == number:
            time.sleep(0.0005)

    def _note(
        self,
        number: int,
        value: Any,
        error: BaseException | None,
        profile: tuple[float, float, float] | None,
    ) -> None:
        kind = PLAIN
        if error is not None:
            kind, value = ERROR, _failure(error)
        elif type(value) not in _PLAIN_TYPES:
            try:
                if dask.sizeof.sizeof(value) > LARGE:
                    self._kept[number] = value
                    kind, value = KEPT, None
                else:
                    kind, value = PICKLED, dump(value)
            except BaseException as raised:  # noqa: BLE001 - whatever the object's own code raises
                kind, value = ERROR, _failure(raised)
        self._untold.add(number, kind, value, profile)

    def _tell(self, *, over: bool = False) -> None:
        outcomes, self._untold = self._untold, _Outcomes()
        now = time.perf_counter()
        busy_s, self._told_at = now - self._told_at, now
        if outcomes.numbers or over:
            self._send(op=OUTCOMES, outcomes=outcomes.dump(), busy_s=busy_s, over=over)

    def _send(self, **message: Any) -> None:
        message |= {"client": self._client, "key": self.key}
        self._worker.loop.add_callback(self._worker.batched_stream.send, message)

    # In the worker's event loop -----------------------------------------------------------------

    def _watch_after(self, seconds: float) -> None:
        self._worker.loop.add_callback(self._worker.loop.call_later, seconds, self._look)

    def _look(self) -> None:
        if _running.get(self.key) is not self:
            return
        with self._lock:
            returned = [n for n in range(self._next, self._end) if n not in self._skipped]
            self._end = self._next
        if returned:
            self._send(op=RETURNED, numbers=returned)
        if self._timeout_s is None:
            return
        number, began = self._current, self._began
        if number != _NOBODY and began and time.perf_counter() - began >= self._timeout_s:
            self._send(op=TIMED_OUT, number=number)
            self.interrupt(number)
        self._watch_after(min(LOOK_S, self._timeout_s / 4))

    def interrupt(self, number: int) -> None:
        """End one call: it is not begun, or is left at its next step of Python."""
        with self._lock:
            if number >= self._next:
                self._skipped.add(number)
                return
            if self._current != number:
                return
            self._interrupting = number
            if self._current != number:  # it has just ended
                self._interrupting = _NOBODY
                return
            _raise_in(self._thread, CallInterrupted)
        self._worker.loop.call_later(INTERRUPT_GRACE_S, self._give_up, number)

    def _give_up(self, number: int) -> None:
        """A call that does not come back to Python holds its slot: its worker has to go."""
        if _running.get(self.key) is self and self._current == number:
            give_up = getattr(self._worker, "give_up_on_call", None)
            if give_up is None:
                logger.warning("an interrupted call of %s does not end", self.key)
            else:
                give_up(self.key)


class _Outcomes:
    """What has ended and was not told yet."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.kinds: list[int] = []
        self.values: list[Any] = []
        self.profiles: list[tuple[float, float, float] | None] = []

    def add(
        self, number: int, kind: int, value: Any, profile: tuple[float, float, float] | None
    ) -> None:
        self.numbers.append(number)
        self.kinds.append(kind)
        self.values.append(value)
        self.profiles.append(profile)

    def dump(self) -> bytes:
        """As bytes: what is the same for all calls is told once."""
        numbers: Any = self.numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            numbers = range(numbers[0], numbers[-1] + 1)
        kinds = self.kinds if any(self.kinds) else None
        profiles = self.profiles if any(self.profiles) else None
        return dump((numbers, kinds, self.values, profiles))


def _failure(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        # Left as it is it would end whoever asks for the result.
        ended = RuntimeError(f"the call ended with {error!r}")
        error = ended.with_traceback(error.__traceback__)
    try:
        raise error
    except Exception as raised:  # noqa: BLE001 - Dask takes the traceback of what is handled
        return dump_error(raised)


def _raise_in(thread: int, exception: Callable[[], BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
