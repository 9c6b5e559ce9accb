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
#: Calls are claimed together where the last claim took less; more and more, up to the largest.
QUICK_S = 0.001
LARGEST_CLAIM = 256
_NOBODY = -1

#: Kinds of outcome: the value itself, its pickle, an error, a value that stays on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})

OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
INTERRUPT = "scalable-interrupt"
TIMED_OUT = "scalable-timed-out"

Calls = tuple[Sequence[int] | None, Sequence[Sequence[Any]], Sequence[dict[str, Any] | None] | None]

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
        The calls: numbers of their functions (None where all have the first), positional and
        keyword arguments (None where there are none).
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

    def __init__(self, worker: Any, header: Mapping[str, Any], calls: Calls) -> None:
        self.key: str = header["key"]
        self._client: str = header["client"]
        self._functions = [_loaded(*pair) for pair in header["functions"]]
        self._indexes, self._args, self._kwargs = calls
        self._timeout_s: float | None = header["timeout_s"]
        self._profile: bool = header["profile"]
        self._worker = worker
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._next, self._end = 0, len(self._args)
        self._skipped: set[int] = set()
        self._current = self._interrupting = _NOBODY
        self._began = self._told_at = 0.0
        self._claim_size, self._claimed_at = 1, 0.0
        self._kept: dict[int, Any] = {}
        self._untold = _Outcomes()

    # In the thread that runs the calls --------------------------------------------------------

    def run(self) -> dict[int, Any]:
        """Run every call that is not given back; the values that stay here."""
        if self._end > 1 or self._timeout_s is not None:
            self._watch_after(OVERDUE_S)
        self._told_at = time.perf_counter()
        while claimed := self._claim():
            self._run_claimed(claimed)
            if time.perf_counter() - self._told_at > TELL_S:
                self._tell()
        self._tell(over=True)
        return self._kept

    def _claim(self) -> range:
        """Calls that are run next and not given back: one, or several that take no time."""
        now = time.perf_counter()
        quick = now - self._claimed_at < QUICK_S
        self._claim_size = min(2 * self._claim_size, LARGEST_CLAIM) if quick else 1
        self._claimed_at = now
        with self._lock:
            first = self._next
            self._next = min(first + self._claim_size, self._end)
            return range(first, self._next)

    def _run_claimed(self, numbers: range) -> None:
        clock, untold = time.perf_counter, self._untold
        for number in numbers:
            if number in self._skipped:
                continue
            function = self._functions[self._indexes[number] if self._indexes else 0]
            args = self._args[number]
            kwargs = self._kwargs[number] if self._kwargs else None
            cpu, stamp = (time.thread_time(), time.time()) if self._profile else (0.0, 0.0)
            self._began = began = clock()
            try:
                self._current = number
                value = function(*args, **kwargs) if kwargs else function(*args)
                self._current = _NOBODY
                if self._interrupting == number:
                    self._await_interrupt(number)
            except CallInterrupted:
                self._current = self._interrupting = _NOBODY
                continue
            except BaseException as raised:  # noqa: BLE001 - one failing call fails that call alone
                self._current = _NOBODY
                if not self._survives(number):
                    continue
                untold.add(number, _failure(raised), ERROR)
            else:
                if type(value) in _PLAIN_TYPES:
                    untold.add(number, value)
                else:
                    self._add_object(number, value)
            if self._profile:
                untold.profiles.append((stamp, clock() - began, time.thread_time() - cpu))
        self._began = 0.0

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

    def _add_object(self, number: int, value: Any) -> None:
        try:
            if dask.sizeof.sizeof(value) > LARGE:
                self._kept[number] = value
                self._untold.add(number, None, KEPT)
            else:
                self._untold.add(number, dump(value), PICKLED)
        except BaseException as raised:  # noqa: BLE001 - whatever the object's own code raises
            self._untold.add(number, _failure(raised), ERROR)

    def _tell(self, *, over: bool = False) -> None:
        now = time.perf_counter()
        busy_s, self._told_at = now - self._told_at, now
        if self._untold.numbers or over:
            self._send(op=OUTCOMES, outcomes=self._untold.dump(), busy_s=busy_s, over=over)
            self._untold = _Outcomes()

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
            if self._current != number:
                self._skipped.add(number)  # claimed, perhaps
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
    """What has ended and was not told yet: numbers and values, and kinds of what is not plain."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.values: list[Any] = []
        self.kinds: dict[int, int] = {}
        self.profiles: list[tuple[float, float, float]] = []

    def add(self, number: int, value: Any, kind: int = PLAIN) -> None:
        self.numbers.append(number)
        self.values.append(value)
        if kind:
            self.kinds[number] = kind

    def dump(self) -> bytes:
        """As bytes."""
        numbers: Any = self.numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            numbers = range(numbers[0], numbers[-1] + 1)
        return dump((numbers, self.values, self.kinds, self.profiles))


def _loaded(digest: bytes, data: bytes) -> Callable[..., Any]:
    """The function, or one that raises why there is none."""
    try:
        return load_function(digest, data)
    except Exception as error:  # noqa: BLE001 - whatever importing its module raises
        problem = error

        def fail(*_: Any, **__: Any) -> None:
            raise problem

        return fail


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
