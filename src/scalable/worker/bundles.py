"""Runs the calls of a bundle on a worker, one after another, and answers while it goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import dask.sizeof
from distributed import Worker, get_worker

from scalable.protocol.bundles import (
    ERROR,
    EVERY,
    INTERRUPT_GRACE_S,
    KEPT,
    PICKLED,
    PLAIN,
    PROCESS,
    TELL_S,
    too_long,
)
from scalable.protocol.lending import CallInterrupted, take_slot_back
from scalable.protocol.messages import (
    LARGE,
    arguments,
    dump,
    dump_error,
    load_calls,
    load_function,
)
from scalable.protocol.operations import BEGUN, INTERRUPT, OUTCOMES, PRINTED, RETURNED, TIMED_OUT
from scalable.worker.bundle_counts import BundleCounts
from scalable.worker.interrupts import (
    give_up,
    interrupt_task,
    raise_in,
    take_back,
)
from scalable.worker.output import Lines, heard

#: A bundle that runs for longer gives back what it has not begun: other slots may be free.
OVERDUE_S = 0.05
#: The scheduler is told within so many seconds that a bundle begins, where that is asked for.
TOLD_S = 30.0
#: Looks for calls that run longer than they may, at most so far apart.
LOOK_S = 0.25
_NOBODY = -1
_WAITING = frozenset({"waiting", "ready", "constrained"})

_SMALL_TYPES = frozenset({type(None), bool, int, float, complex})
_TEXTS = frozenset({str, bytes})

_running: dict[str, BundleRun] = {}
#: Calls of bundles that have not begun, and that nobody waits for any more.
_unwanted: dict[str, set[int]] = {}
#: Of so many bundles that is remembered; the calls of others run in vain.
MOST_UNWANTED = 1000


def run_bundle(
    header: Mapping[str, Any], payload: bytes, references: Mapping[Any, Any]
) -> dict[int, Any] | None:
    """Run a bundle in a thread of a Dask worker.

    Parameters
    ----------
    header
        ``key``, ``client``, ``functions`` (digest and bytes of each), ``timeout_s`` or None;
        ``profile``, ``record``: whether each call's numbers are wanted by the client, or for the
        records; ``confirm``: whether the scheduler is told that it begins; ``process``: whose
        output is wanted, "" for nobody's.
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
    worker.stream_handlers.setdefault(INTERRUPT, partial(interrupt, worker))
    run = BundleRun(worker, header, load_calls(payload, references), references)
    _running[run.key] = run
    try:
        run.skip(_unwanted.pop(run.key, set()))  # from here on it is told itself
        if not header["confirm"]:
            run.tell_begun()
        else:
            told = worker.scheduler.scalable_begun(key=header["key"], client=header["client"])
            loop: Any = worker.loop
            asyncio.run_coroutine_threadsafe(told, loop.asyncio_loop).result(TOLD_S)
        return run.run() or None
    finally:
        del _running[run.key]


def interrupt(worker: Worker, key: Any, number: int | None, client: str) -> None:
    """End one call of a bundle, or a task that is none; nothing where it has ended.

    With :data:`EVERY` as its number all calls of a bundle are given back that has not begun.
    """
    if number is None:
        interrupt_task(worker, key)
    elif number == EVERY:
        task = worker.state.tasks.get(key)
        if task is not None and task.state in _WAITING:
            _note_unwanted(key, EVERY)
            message = {"op": RETURNED, "client": client, "key": key, "numbers": EVERY}
            worker.batched_stream.send(message)
    elif (run := _running.get(key)) is not None:
        run.interrupt(number)
    elif key in worker.state.tasks:  # it waits here
        _note_unwanted(key, number)


def _note_unwanted(key: str, number: int) -> None:
    _unwanted.setdefault(key, set()).add(number)
    while len(_unwanted) > MOST_UNWANTED:
        del _unwanted[next(iter(_unwanted))]


class BundleRun:
    """One bundle while it runs.

    Parameters
    ----------
    worker
        The Dask worker.
    header, references
        As in :func:`run_bundle`.
    calls
        Numbers of their functions, and their arguments as they came.
    """

    def __init__(
        self,
        worker: Any,
        header: Mapping[str, Any],
        calls: tuple[Sequence[int] | None, Sequence[Any]],
        references: Mapping[Any, Any],
    ) -> None:
        self.key: str = header["key"]
        self._client: str = header["client"]
        self._functions = [_loaded(*pair) for pair in header["functions"]]
        self._indexes, self._rows = calls
        self._references = references
        self._timeout_s: float | None = header["timeout_s"]
        self._profile: bool = header["profile"]
        self._record: bool = header["record"]
        self._measures = self._profile or self._record
        self._streams = header["process"] not in ("", PROCESS)
        self._worker = worker
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._next, self._end = 0, len(self._rows)
        self._skipped: set[int] = set()
        self._current = self._interrupting = self._timed_out = _NOBODY
        self._began = self._told_at = 0.0
        self._kept: dict[int, Any] = {}
        self._untold = _Outcomes()
        self._tally = BundleCounts()

    # In the thread that runs the calls --------------------------------------------------------

    def skip(self, numbers: set[int]) -> None:
        """Leave out calls that nobody waits for."""
        self._skipped |= numbers
        if EVERY in numbers:
            self._end = 0

    def tell_begun(self) -> None:
        """Tell the client, soon."""
        self._send(op=BEGUN)

    def run(self) -> dict[int, Any]:
        """Run every call that is not given back; the values that stay here."""
        if self._end > 1 or self._timeout_s is not None:
            self._watch_after(OVERDUE_S)
        self._told_at = time.perf_counter()
        lines = Lines(lambda text: self._send(op=PRINTED, text=text))
        with heard(lines.write) if self._streams else nullcontext():
            while (number := self._claim()) is not None:
                if number not in self._skipped:
                    self._run_call(number)
                if time.perf_counter() - self._told_at > TELL_S:
                    self._tell()
        lines.end()
        task = self._worker.state.tasks.get(self.key)
        if task is not None:  # before the last word: whoever heard it may ask for the records
            task.startstops.append(self._tally.entry())
        self._tell(over=True)
        return self._kept

    def _claim(self) -> int | None:
        """The call that is run next and not given back."""
        with self._lock:
            number = self._next
            if number >= self._end:
                return None
            self._next = number + 1
            return number

    def _run_call(self, number: int) -> None:
        function = self._functions[self._indexes[number] if self._indexes else 0]
        measures = self._measures
        cpu, stamp = (time.thread_time(), time.time()) if measures else (0.0, 0.0)
        self._began = began = time.perf_counter()
        value: Any = None
        error: BaseException | None = None
        try:
            self._current = number
            if number not in self._skipped:  # cancelled since that was looked at, perhaps
                try:
                    args, kwargs = arguments(self._rows[number], self._references)
                    value = function(*args, **kwargs)
                except CallInterrupted:
                    raise
                except BaseException as raised:  # noqa: BLE001 - a failing call fails alone
                    error = raised
            self._current = _NOBODY
            if number in self._skipped:
                # An interrupt that is on its way, or that the call kept to itself: none is left
                # for the next call.
                with self._lock:
                    take_back(self._thread)
        except CallInterrupted as interrupted:
            error = interrupted
            self._current = _NOBODY
        if number in self._skipped:
            self._interrupting = _NOBODY
            if self._timed_out == number:
                late = too_long(function, self._timeout_s or 0.0)
                self._tally.failed(late.with_traceback(error.__traceback__ if error else None))
                self._tally.durations.append(time.perf_counter() - began)
            value = error = None
            take_slot_back()  # for the next call
            return
        if error is not None:
            self._fail(number, error)
            error = None  # no cycle by the traceback
        else:
            kind = type(value)
            if kind in _SMALL_TYPES or (kind in _TEXTS and len(value) <= LARGE):
                self._untold.add(number, value)
            else:
                self._add_object(number, value)
        duration = time.perf_counter() - began
        self._tally.durations.append(duration)
        if measures:
            self._untold.profiles.append((stamp, duration, time.thread_time() - cpu, None))

    def _fail(self, number: int, error: BaseException) -> None:
        self._tally.failed(error)
        self._untold.add(number, _failure(error), ERROR)

    def _add_object(self, number: int, value: Any) -> None:
        try:
            if dask.sizeof.sizeof(value) > LARGE:
                self._kept[number] = value
                self._untold.add(number, None, KEPT)
            else:
                self._untold.add(number, dump(value), PICKLED)
        except BaseException as raised:  # noqa: BLE001 - whatever the object's own code raises
            self._fail(number, raised)

    def _tell(self, *, over: bool = False) -> None:
        now = time.perf_counter()
        busy_s, self._told_at = now - self._told_at, now
        if self._untold.numbers or over:
            if self._untold.profiles:
                self._add_peak()
            outcomes = self._untold.dump(self._worker.name, self._transfer_s)
            self._send(op=OUTCOMES, outcomes=outcomes, busy_s=busy_s, over=over)
            self._untold = _Outcomes()

    def _add_peak(self) -> None:
        """Put the peak of memory beside what was measured of calls: looking at it takes a while."""
        outcomes = self._untold
        peak = getattr(self._worker, "peak_memory", lambda: None)()
        outcomes.profiles = [(*measured[:3], peak) for measured in outcomes.profiles]
        if self._record:
            self._tally.rows += [
                (outcomes.kinds.get(number) != ERROR, measured)
                for number, measured in zip(outcomes.numbers, outcomes.profiles, strict=True)
            ]
        if not self._profile:
            outcomes.profiles = []

    @property
    def _transfer_s(self) -> float:
        task = self._worker.state.tasks.get(self.key)
        parts = task.startstops if task is not None else ()
        return sum((p["stop"] - p["start"] for p in parts if p["action"] == "transfer"), 0.0)

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
        is_late = began and time.perf_counter() - began >= self._timeout_s
        if is_late and number not in (_NOBODY, self._timed_out):
            self._timed_out = number
            self._send(op=TIMED_OUT, number=number)
            self.interrupt(number)
        self._watch_after(min(LOOK_S, self._timeout_s / 4))

    def interrupt(self, number: int) -> None:
        """End one call: it is not begun, or is left at its next step of Python."""
        with self._lock:
            if self._interrupting == number:
                return  # it was told
            self._skipped.add(number)
            if self._current != number:
                return
            self._interrupting = number
            if self._current != number:  # it has just ended
                self._interrupting = _NOBODY
                return
            raise_in(self._thread)
        self._worker.loop.call_later(INTERRUPT_GRACE_S, self._give_up, number)

    def _give_up(self, number: int) -> None:
        if _running.get(self.key) is self and self._current == number:
            function = self._functions[self._indexes[number] if self._indexes else 0]
            give_up(self._worker, self.key, getattr(function, "__qualname__", self.key))


class _Outcomes:
    """What has ended and was not told yet: numbers and values, and kinds of what is not plain."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.values: list[Any] = []
        self.kinds: dict[int, int] = {}
        #: When it began (seconds since 1970), duration, CPU seconds, peak memory in bytes.
        self.profiles: list[tuple[float, float, float, int | None]] = []

    def add(self, number: int, value: Any, kind: int = PLAIN) -> None:
        self.numbers.append(number)
        self.values.append(value)
        if kind:
            self.kinds[number] = kind

    def dump(self, worker: Any, transfer_s: float) -> bytes:
        """As bytes, with the worker's name and how long the arguments took to come."""
        numbers: Any = self.numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            numbers = range(numbers[0], numbers[-1] + 1)
        measured = (str(worker), transfer_s, self.profiles) if self.profiles else None
        return dump((numbers, self.values, self.kinds, measured))


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
        raise error  # noqa: TRY301 - Dask takes the traceback of what is handled
    except Exception as raised:  # noqa: BLE001 - whatever it is
        try:
            return dump_error(raised)
        except BaseException as other:  # noqa: BLE001 - the error's own code
            said = f"the call raised {type(error).__name__}, which cannot be sent: {type(other)}"
            return dump_error(RuntimeError(said))
