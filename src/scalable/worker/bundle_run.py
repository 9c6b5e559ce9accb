"""`BundleRun`: runs the calls of one bundle one after another, and sends outcomes meanwhile.

A *bundle* is a batch of calls that a client sends as one Dask task.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from scalable.caching.hearing import heard_by
from scalable.protocol.bundles import EVERY, PROCESS, TELL_S, first_try, too_long
from scalable.protocol.dask_seams.worker import send_to_scheduler, timings_of
from scalable.protocol.described_failures import note_call
from scalable.protocol.ended_frames import release_frames
from scalable.protocol.importing import with_place
from scalable.protocol.lending import CallInterrupted, take_slot_back
from scalable.protocol.measured import remembered_addition
from scalable.protocol.messages import Pickled, arguments
from scalable.protocol.operations import BEGUN, OUTCOMES, PRINTED, RETURNED, TIMED_OUT
from scalable.worker.bundle_counts import BundleCounts
from scalable.worker.interrupts import clear_interrupt, raise_in, replace_if_stuck
from scalable.worker.outcomes import UnsentOutcomes, function_or_error
from scalable.worker.output import Lines, heard

logger = logging.getLogger("scalable.worker")

#: Seconds after which a bundle gives back the calls that have not begun: other slots may be free.
OVERDUE_S = 0.15
#: Largest time in seconds between two checks for calls that run longer than their limit.
CHECK_S = 0.25
_NOBODY = -1


class BundleRun:
    """One running bundle.

    Parameters
    ----------
    worker
        The Dask worker.
    header, references
        As in :func:`scalable.worker.bundles.run_bundle`.
    calls
        Index of each call's function, and each call's arguments as they were received.
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
        code: str = header["code"]
        self._functions = [function_or_error(d, data, code) for d, data in header["functions"]]
        self._indexes, self._rows = calls
        self._references = references
        self._timeout_s: float | None = header["timeout_s"]
        self._profile: bool = header["profile"]
        self._record: bool = header["record"]
        self._measures = self._profile or self._record
        self._first_tries: Mapping[int, str] = header["first_tries"]
        self._checkpoints: Any = getattr(worker, "checkpoints", None)
        self._streams = header["process"] not in ("", PROCESS)
        self._worker = worker
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        #: Held by the thread of the calls while it adds an outcome, which may run the user's code.
        self._adding = threading.Lock()
        self._next, self._end = 0, len(self._rows)
        self._over = False
        self._skipped: set[int] = set()
        self._current = self._interrupting = self._timed_out = _NOBODY
        self._began = self._sent_at = 0.0
        self._given: Any = None
        self._kept: dict[int, Pickled] = {}
        self._unsent = UnsentOutcomes()
        self._counts = BundleCounts()

    # In the thread that runs the calls ----------------------------------------------------------

    def skip(self, numbers: set[int]) -> None:
        """Leave out cancelled calls, given by their positions in the bundle, or by ``EVERY``."""
        self._skipped |= numbers
        if EVERY in numbers:
            self._end = 0

    def send_begun(self) -> None:
        """Tell the client that the bundle begins, without waiting for an answer."""
        self._send(op=BEGUN)

    def run(self) -> dict[int, Pickled]:
        """Run the calls, and return position -> value for values too large for a message."""
        if self._end > 1 or self._timeout_s is not None:
            self._check_after(OVERDUE_S)
        self._sent_at = time.perf_counter()
        lines = Lines(lambda text: self._send(op=PRINTED, text=text))
        try:
            output = heard(lines.write) if self._streams else nullcontext()
            with output, heard_by(self._counts.hear):
                while (number := self._claim()) is not None:
                    if number not in self._skipped:
                        self._run_call(number)
                    if time.perf_counter() - self._sent_at > TELL_S:
                        self._send_outcomes()
            lines.end()
            # This comes before the last message: a client with all outcomes may read the records.
            timings = timings_of(self._worker, self.key)
            timings.append(self._counts.entry())
            if self._counts.outcomes:
                timings.append(remembered_addition(self._counts.outcomes))
            self._send_outcomes(over=True)
        finally:
            self._over = True
        return self._kept

    def _claim(self) -> int | None:
        """Take the next call, and return its position in the bundle; None if no call is left."""
        with self._lock:
            number = self._next
            if number >= self._end:
                return None
            self._next = number + 1
            return number

    def _run_call(self, number: int) -> None:
        function = self._function(number)
        measures = self._measures
        cpu, stamp = (time.thread_time(), time.time()) if measures else (0.0, 0.0)
        self._began = began = time.perf_counter()
        value: Any = None
        given: Any = None
        error: BaseException | None = None
        try:
            self._current = number
            if number not in self._skipped:  # it may have been cancelled since the first look
                try:
                    given = args, kwargs = arguments(self._rows[number], self._references)
                    self._given = given
                    value = function(*args, **kwargs)
                except CallInterrupted:
                    raise
                except BaseException as raised:  # noqa: BLE001 - a failing call fails alone
                    error = raised
            self._current, self._given = _NOBODY, None
            if number in self._skipped:
                # The interrupt may still be pending; it must not reach the next call.
                with self._lock:
                    clear_interrupt(self._thread)
        except CallInterrupted as interrupted:
            error = interrupted
            self._current, self._given = _NOBODY, None
        if number in self._skipped:
            if self._checkpoints is not None:
                self._checkpoints.end(self.key, number, succeeded=False)
            self._end_skipped(number, error, time.perf_counter() - began, given)
            if error is not None:
                release_frames(error)
            value = error = None
            take_slot_back()  # for the next call
            return
        with self._adding:
            if self._checkpoints is not None:
                self._checkpoints.end(self.key, number, succeeded=error is None)
            if error is not None:
                self._fail(number, error, given)
                release_frames(error)
                error = None  # no reference cycle through the traceback
            else:
                self._keep_or_add(number, value)
            duration = time.perf_counter() - began
            self._counts.ran(number, duration)
            if measures:
                self._unsent.profiles.append((stamp, duration, time.thread_time() - cpu, None))

    @property
    def position(self) -> int:
        """Position of the call that runs; for the thread that runs it."""
        return self._current

    def first_try(self, number: int) -> str:
        """Return the name of the first try of a call, which all its tries have in common."""
        return self._first_tries.get(number) or first_try(self.key, number)

    def _function(self, number: int) -> Any:
        return self._functions[self._indexes[number] if self._indexes else 0]

    def _end_skipped(
        self, number: int, error: BaseException | None, seconds: float, given: Any
    ) -> None:
        """Record an interrupted call as failed if the call exceeded its time limit."""
        self._interrupting = _NOBODY
        logger.debug("call %d of bundle %s is ended after %.3f s", number, self.key, seconds)
        if self._timed_out == number:
            late = too_long(self._function(number), self._timeout_s or 0.0)
            late = late.with_traceback(error.__traceback__ if error else None)
            self._counts.failed(late, number, given)
            self._counts.ran(number, seconds)
        self._counts.cancelled()

    def _fail(self, number: int, error: BaseException, given: Any = None) -> None:
        function = self._function(number)
        named = getattr(function, "__name__", self.key)  # some callables have a plain name only
        name = getattr(function, "__qualname__", named)
        if isinstance(error, ModuleNotFoundError):
            error = with_place(error, f"call {name!r}")
        told = self._counts.failed(error, number, given)
        note_call(error, name, told, str(self._worker.name))
        self._unsent.add_error(number, error)

    def _keep_or_add(self, number: int, value: Any) -> None:
        """Add a value to the outcomes; keep a value on the worker if it is too large to send."""
        try:
            if (kept := self._unsent.add_value(number, value)) is not None:
                self._kept[number] = kept
        except BaseException as raised:  # noqa: BLE001 - whatever the object's own code raises
            self._fail(number, raised)

    def _send_outcomes(self, *, over: bool = False) -> None:
        with self._adding:
            self._send_until(time.perf_counter(), over=over)

    def _send_until(self, now: float, *, over: bool = False) -> None:
        busy_s, self._sent_at = now - self._sent_at, now
        if self._unsent.numbers or over:
            if self._unsent.profiles:
                self._add_peak()
            outcomes = self._unsent.dump(self._worker.name, self._transfer_s)
            self._send(op=OUTCOMES, outcomes=outcomes, busy_s=busy_s, over=over)
            self._unsent = UnsentOutcomes()

    def _add_peak(self) -> None:
        """Add the worker's peak memory to all unsent measurements; read it once, which is slow."""
        outcomes = self._unsent
        peak = getattr(self._worker, "peak_memory", lambda: None)()
        outcomes.profiles = [(*measured[:3], peak) for measured in outcomes.profiles]
        if self._record:
            self._counts.rows += [
                (self._counts.state(number, failed=outcomes.is_error(number)), measured)
                for number, measured in zip(outcomes.numbers, outcomes.profiles, strict=True)
            ]
        if not self._profile:
            outcomes.profiles = []

    @property
    def _transfer_s(self) -> float:
        """Seconds that the transfer of the bundle's arguments took."""
        parts = timings_of(self._worker, self.key)
        return sum((p["stop"] - p["start"] for p in parts if p["action"] == "transfer"), 0.0)

    def _send(self, **message: Any) -> None:
        message |= {"client": self._client, "key": self.key}
        self._worker.loop.add_callback(send_to_scheduler, self._worker, message)

    # In the worker's event loop -----------------------------------------------------------------

    def running_call(self) -> tuple[int | None, float | None, Any]:
        """Return position, running time in seconds and arguments of the call that runs.

        Each is None between two calls; the arguments are None until they are unpickled.
        """
        number, began, given = self._current, self._began, self._given
        if number == _NOBODY or number != self._current:
            return None, None, None
        return number, time.perf_counter() - began, given

    def interrupt(self, number: int) -> None:
        """End one call: skip the call if it has not begun, or raise an exception in its thread."""
        with self._lock:
            if self._interrupting == number:
                return  # the second request for the same call
            self._skipped.add(number)
            if self._current != number:
                return
            self._interrupting = number
            if self._current != number:  # it has just ended
                self._interrupting = _NOBODY
                return
            logger.debug("call %d of bundle %s is interrupted", number, self.key)
            raise_in(self._thread)
        shown = getattr(self._function(number), "__qualname__", self.key)
        replace_if_stuck(self._worker, self.key, shown, lambda: self._runs(number))

    def end(self) -> None:
        """Begin no further call, and end the call that runs."""
        with self._lock:
            self._end = self._next
            number = self._current
        if number != _NOBODY:
            self.interrupt(number)

    def _runs(self, number: int) -> bool:
        return not self._over and self._current == number

    def _send_ended(self) -> None:
        """Send the outcomes of the calls that have ended, while a call runs that takes long."""
        if not self._adding.acquire(blocking=False):
            self._worker.loop.call_later(TELL_S, self._send_ended)  # an outcome is being added
            return
        try:
            if self._unsent.numbers and not self._over:
                self._send_until(max(self._began, self._sent_at))
        finally:
            self._adding.release()

    def _check_after(self, seconds: float) -> None:
        self._worker.loop.add_callback(self._worker.loop.call_later, seconds, self._check)

    def _check(self) -> None:
        """Give back calls that have not begun, send the outcomes of those that have ended.

        Interrupt a call that exceeds its time limit.
        """
        if self._over:
            return
        with self._lock:
            returned = [n for n in range(self._next, self._end) if n not in self._skipped]
            self._end = self._next
        if returned:
            logger.debug("bundle %s gives back %d calls", self.key, len(returned))
            self._send(op=RETURNED, numbers=returned)
        self._send_ended()
        if self._timeout_s is None:
            return
        number, began = self._current, self._began
        is_late = began and time.perf_counter() - began >= self._timeout_s
        if is_late and number not in (_NOBODY, self._timed_out):
            logger.debug("call %d of bundle %s runs for too long", number, self.key)
            self._timed_out = number
            self._send(op=TIMED_OUT, number=number)
            self.interrupt(number)
        self._check_after(min(CHECK_S, self._timeout_s / 4))
