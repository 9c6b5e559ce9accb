"""Running, waiting and cancelled bundles of a worker.

A *bundle* is a batch of tasks that a client sends as one Dask task.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import dask.sizeof
from distributed import Worker, get_worker

from scalable.cache.calls import heard_by
from scalable.dask_compat.worker import (
    act_on_thread_of,
    current_call,
    guard_threads,
    is_waiting,
    offer_on_stream,
    running_state,
    runs_in,
    send_to_scheduler,
    task_of,
    timings_of,
    uninterrupted,
)
from scalable.harmless import sendable
from scalable.liveness import exit_in_child
from scalable.protocol.failures import note_call, release_frames
from scalable.protocol.handlers import Handler, request
from scalable.protocol.importing import locate_here
from scalable.protocol.lending import CallInterrupted, take_slot_back
from scalable.protocol.measured import cache_addition
from scalable.protocol.messages import LARGE, Pickled, arguments, dump, dump_error, load_calls
from scalable.protocol.operations import (
    BEGUN,
    ERROR,
    EVERY,
    INTERRUPT,
    KEPT,
    OUTCOMES,
    PICKLED,
    PLAIN,
    PRINTED,
    PROCESS,
    RETURNED,
    TELL_S,
)
from scalable.worker.outcomes import (
    BundleCounts,
    EndedCalls,
    Lines,
    function_or_error,
    heard,
    is_small,
    packed_error,
    too_long,
)

logger = logging.getLogger("scalable.worker")

#: Seconds for which a bundle waits for the scheduler's answer to the report of its start.
CONFIRM_S = 30.0
#: Seconds that an interrupted task has to stop. After that its worker is replaced.
INTERRUPT_GRACE_S = 2.0
#: Largest number of waiting bundles whose cancelled tasks are kept. Cancelled tasks of other
#: bundles run, and their results are ignored.
MOST_CANCELLED = 1000

#: Bundles by key. There is none in a process that a task has forked.
_running: dict[str, BundleRun] = {}
os.register_at_fork(after_in_child=_running.clear)
#: Positions of the cancelled tasks, by key of a waiting bundle.
_cancelled: dict[str, set[int]] = {}


def run_bundle(
    header: Mapping[str, Any], payload: bytes, references: Mapping[Any, Any]
) -> dict[int, Any] | None:
    """Run a bundle in a thread of a Dask worker. Return large results by position.
    ``payload`` contains :data:`.Calls`, and ``references`` the values of futures in the arguments.
    """
    worker = get_worker()
    offer_interrupts(worker)
    if header["confirm"]:  # before anything of the user's is loaded, which may kill the worker, too
        begun = {"key": header["key"], "client": header["client"]}
        told = request(worker.scheduler, Handler.BUNDLE_BEGUN, **begun)
        loop: Any = worker.loop
        asyncio.run_coroutine_threadsafe(told, loop.asyncio_loop).result(CONFIRM_S)
    run = BundleRun(worker, header, load_calls(payload, references), references)
    _running[run.key] = run
    logger.debug("bundle %s starts", run.key)
    try:
        run.skip(_cancelled.pop(run.key, set()))  # later cancellations reach the run directly
        if not header["confirm"]:
            run.send(op=BEGUN)
        return run.run() or None
    finally:
        del _running[run.key]


def running_bundle(key: str) -> BundleRun | None:
    """Return the bundle with this key if it runs in this process, or None."""
    return _running.get(key)


def interrupt(worker: Worker, key: Any, number: int | None, client: str) -> None:
    """Interrupt a task, or give back a waiting bundle. A finished task is not an error.
    ``number`` is a position in the bundle, None for all that the Dask task runs, or ``EVERY``.
    """
    run = _running.get(key)
    if number is None:
        interrupt_task(worker, key) if run is None else run.end()
    elif number == EVERY:
        if is_waiting(worker, key):
            logger.debug("bundle %s is returned", key)
            _note_cancelled(key, EVERY)
            message = {"op": RETURNED, "client": client, "key": key, "numbers": EVERY}
            send_to_scheduler(worker, message)
    elif run is not None:
        run.interrupt(number)
    elif task_of(worker, key) is not None:  # the bundle waits on this worker
        logger.debug("task %d of bundle %s is cancelled before the bundle starts", number, key)
        _note_cancelled(key, number)


def _note_cancelled(key: str, number: int) -> None:
    _cancelled.setdefault(key, set()).add(number)
    while len(_cancelled) > MOST_CANCELLED:
        del _cancelled[next(iter(_cancelled))]


# Bundle run ---------------------------------------------------------------------------------------

#: Seconds after which a bundle gives back the tasks that have not started: other slots may be free.
OVERDUE_S = 0.15
#: Largest time in seconds between two checks for tasks that run longer than their limit.
CHECK_S = 0.25
#: Shortest time in seconds between two readings of the thread's CPU time, which take longer than
#: short tasks.
CPU_READ_S = 1e-4
#: Seconds until the next interrupt of a task that no thread had begun, or where it was lost.
AGAIN_S = 0.02
_NOBODY = -1


class BundleRun:
    """One running bundle."""

    def __init__(
        self,
        worker: Any,
        header: Mapping[str, Any],
        calls: tuple[Sequence[int] | None, Sequence[Any]],
        references: Mapping[Any, Any],
    ) -> None:
        # ``calls`` contains the index of each task's function, and the arguments as received.
        self._header = header
        self.key: str = header["key"]
        code: str = header["code"]
        functions = [function_or_error(d, data, code) for d, data in header["functions"]]
        indexes, self._rows = calls
        self._functions = [functions[index] for index in indexes or repeat(0, len(self._rows))]
        self._references = references
        self._timeout_s: float | None = header["timeout_s"]
        self._measures: bool = header["profile"] or header["record"]
        self._checkpoints: Any = getattr(worker, "checkpoints", None)
        self._streams = header["process"] not in ("", PROCESS)
        self._worker = worker
        self._thread = threading.get_ident()
        #: Held while a task is interrupted.
        self._lock = threading.Lock()
        #: Held while outcomes are taken and sent, so that messages are in order.
        self._sending = threading.Lock()
        #: Positions of the tasks that have not started. Any thread takes the next one, or all.
        self._waiting = iter(range(len(self._rows)))
        self._over = False
        self._skipped: set[int] = set()
        self._pid = os.getpid()
        #: Position and start time of the running task, for use in the thread that runs it.
        self.position, self.began = _NOBODY, 0.0
        self._timed_out, self._sent_at = _NOBODY, 0.0
        #: CPU time of the thread when it was last read.
        self._cpu_s = 0.0
        #: Epoch time minus ``perf_counter`` in seconds. The largest of three readings is best.
        self._epoch = max(time.time() - time.perf_counter() for _ in range(3))
        self._given: Any = None
        self._kept: dict[int, Pickled] = {}
        self._unsent = EndedCalls()
        self._counts = BundleCounts()

    # In the thread that runs the tasks ----------------------------------------------------------

    def skip(self, numbers: set[int]) -> None:
        """Leave out cancelled tasks, given by position or as ``EVERY``."""
        self._skipped |= numbers
        if EVERY in numbers:
            self._take_waiting()

    def run(self) -> dict[int, Pickled]:
        """Run the tasks, and return values that are too large for a message, by position."""
        if len(self._rows) > 1 or self._timeout_s is not None:
            self._check_after(OVERDUE_S)
        lines = Lines(lambda text: self.send(op=PRINTED, text=sendable(text)))
        try:
            output = heard(lines.write) if self._streams else nullcontext()
            with output, heard_by(partial(setattr, self._counts, "heard")):
                self._run_calls()
            lines.end()
            with self._sending:
                last = self._take()
                # This comes before the last message: a client with all outcomes may read the
                # records.
                timings_of(self._worker, self.key).extend(self._last_timings())
                self._send_outcomes(last, time.perf_counter())
        finally:
            self._over = True
        return self._kept

    def _run_calls(self) -> None:
        """Run the waiting tasks, timing each from the end of the previous one."""
        # A plain task needs this loop alone: a call takes as long as some tasks, as does a clock.
        rows, functions, skipped, counts = self._rows, self._functions, self._skipped, self._counts
        checkpoints, unsent = self._checkpoints or SimpleNamespace(begun=False), self._unsent
        began, cpu_due = self._read_clocks()
        self._sent_at, tell_at = began, began + TELL_S
        for number in self._waiting:
            if skipped and number in skipped:
                continue
            value = error = None
            row, self.began = rows[number], began
            try:
                self.position = number
                if not (skipped and number in skipped):  # it may be since the first check
                    try:
                        apart = type(row) is bytes
                        value = self._run_apart(number, row) if apart else functions[number](*row)
                    except CallInterrupted:
                        raise
                    except BaseException as raised:  # noqa: BLE001 - a failing task fails alone
                        error = raised
                self.position = _NOBODY
                if skipped and number in skipped:
                    self._drop_interrupt(error)
            except CallInterrupted as interrupted:
                error = interrupted
                self.position = _NOBODY
            if skipped and number in skipped:
                self._end_skipped(number, error, time.perf_counter() - began)
                value = error = None  # no reference cycle, and nothing kept during the wait
                take_slot_back()  # for the next task
                began, cpu_due = self._read_clocks()
                continue
            plain = error is None and self._given is None and counts.heard is None and _running
            if not plain or checkpoints.begun or not is_small(value):
                # No reference cycle through the traceback is left.
                value, error = self._outcome(number, value, error), None
            ended = time.perf_counter()
            if ended >= cpu_due:
                cpu_at, cpu_due = time.thread_time(), ended + CPU_READ_S
                unsent.cpu_read[number], self._cpu_s = cpu_at - self._cpu_s, cpu_at
            unsent.values.append(value)
            unsent.began.append(began)
            unsent.durations.append(ended - began)
            unsent.numbers.append(number)  # now other threads may send the outcome
            began = ended
            if ended > tell_at:
                with self._sending:
                    self._send_outcomes(self._take(), ended)
                began, cpu_due = self._read_clocks()
                tell_at = began + TELL_S

    def _outcome(self, number: int, value: Any, error: BaseException | None) -> Any:
        """Return what is sent for a task that has finished, and note its kind."""
        exit_in_child(self._pid, error)
        kind = PLAIN
        if self._checkpoints is not None and self._checkpoints.begun:
            self._checkpoints.end(self.key, number, succeeded=error is None)
        if error is not None:
            value, kind = self._failed(number, error, self._arguments_of(number)), ERROR
            release_frames(error)
        elif not is_small(value):
            value, kind = self._packed(number, value)
        if self._counts.heard is not None:
            self._counts.remember(number)
        self._given = None
        if kind != PLAIN:
            self._unsent.kinds[number] = kind
        return value

    def _run_apart(self, number: int, row: bytes) -> Any:
        """Run a task whose arguments were pickled separately."""
        self._given = args, kwargs = arguments(row, self._references)
        return self._functions[number](*args, **kwargs)

    def _read_clocks(self) -> tuple[float, float]:
        """Return the start time of the next task, and the time of the next reading of CPU time."""
        now = time.perf_counter()
        if not self._measures:
            return now, math.inf
        self._cpu_s = time.thread_time()
        return now, now + CPU_READ_S

    @property
    def name(self) -> str:
        """Name of the running task, which all its attempts share."""
        return f"{self._header['group']}:{self._header['ids'][self.position]}"

    def _drop_interrupt(self, error: BaseException | None) -> None:
        """Cancel an interrupt that may still be pending, and must not reach the next task."""
        exit_in_child(self._pid, error)  # another thread may have held its copy of the lock
        with self._lock:
            _raise_soon(ctypes.c_ulong(self._thread), None)

    def _end_skipped(self, number: int, error: BaseException | None, seconds: float) -> None:
        """Finish a cancelled task. It counts as failed if it exceeded its time limit."""
        exit_in_child(self._pid, error)
        if self._checkpoints is not None:
            self._checkpoints.end(self.key, number, succeeded=False)
        logger.debug("task %d of bundle %s is stopped after %.3f s", number, self.key, seconds)
        if self._timed_out == number:
            self._count_late(number, error, seconds)
        self._counts.heard = self._given = None
        if error is not None:
            release_frames(error)

    def _count_late(self, number: int, error: BaseException | None, seconds: float) -> None:
        """Count a task that exceeded its time limit as failed."""
        late = too_long(self._functions[number], self._timeout_s or 0.0)
        late = late.with_traceback(error.__traceback__ if error else None)
        self._counts.failed(late, number, self._arguments_of(number))
        self._counts.remember(number)
        self._counts.ran([number], [seconds])
        if self._header["record"]:
            began = self._epoch + time.perf_counter() - seconds
            self._counts.rows.append(("failed", (began, seconds, None, None)))

    def _last_timings(self, cancelled: int = 0) -> list[Any]:
        """Return what is reported at the end: numbers of tasks, failures and cache outcomes."""
        outcomes = self._counts.outcomes
        return [self._counts.entry(cancelled), *([cache_addition(outcomes)] if outcomes else ())]

    def _packed(self, number: int, value: Any) -> tuple[Any, int]:
        """Return a result in the form to send, and its kind. Large results stay on this worker."""
        try:
            if dask.sizeof.sizeof(value) <= LARGE:
                return dump(value), PICKLED
            self._kept[number] = Pickled(value)
        except BaseException as raised:  # noqa: BLE001 - whatever the object's own code raises
            return self._failed(number, raised), ERROR
        return None, KEPT

    def _failed(self, number: int, error: BaseException, given: Any = None) -> bytes:
        """Count a failed task, and return its pickled error."""
        function = self._functions[number]
        named = getattr(function, "__name__", self.key)  # some callables have a plain name only
        name = getattr(function, "__qualname__", named)
        locate_here(error, f"task {name!r}")
        told = self._counts.failed(error, number, given)
        note_call(error, name, told, str(self._worker.name))
        return packed_error(error)

    def _arguments_of(self, number: int) -> Any:
        """Return the arguments of the running task, or None if they are not loaded."""
        row = self._rows[number]
        return self._given if type(row) is bytes else (row, {})

    # For the thread of the tasks, and the event loop, with the lock of sending --------------------

    def _take(self) -> EndedCalls | None:
        """Take the tasks that have finished since the last message, and count them."""
        ended = self._unsent.take()
        if ended is not None:
            self._counts.ran(ended.numbers, ended.durations)
        return ended

    def _send_outcomes(self, ended: EndedCalls | None, now: float) -> None:
        busy_s, self._sent_at = now - self._sent_at, now
        if ended is not None:
            if getattr(self._worker, "output", None) is not None:
                self._worker.loop.add_callback(self._worker.send_printed)
            outcomes = ended.message(self._measured(ended))
            self.send(op=OUTCOMES, outcomes=outcomes, busy_s=busy_s)

    def _measured(self, ended: EndedCalls) -> Any:
        """Record tasks' measurements. Return the measurements that the client collects, or None."""
        if not self._measures:
            return None
        peak = getattr(self._worker, "peak_memory", lambda: None)()  # slow: once for all of them
        began = [self._epoch + at for at in ended.began]
        cpu_s = ended.cpu_s()
        if self._header["record"]:
            times = zip(began, ended.durations, cpu_s, repeat(peak), strict=False)
            for number, row in zip(ended.numbers, times, strict=True):
                state = "found" if number in self._counts.found else "succeeded"
                state = "failed" if ended.kinds.get(number) == ERROR else state
                self._counts.rows.append((state, row))
        if not self._header["profile"]:
            return None
        columns = (array("d", column) for column in (began, ended.durations, cpu_s))
        parts = [p for p in timings_of(self._worker, self.key) if p["action"] == "transfer"]
        transfer_s = sum((part["stop"] - part["start"] for part in parts), 0.0)
        return str(self._worker.name), transfer_s, *columns, peak

    def send(self, **message: Any) -> None:
        message |= {"client": self._header["client"], "key": self.key}
        self._worker.loop.add_callback(send_to_scheduler, self._worker, message)

    # In the worker's event loop -----------------------------------------------------------------

    def running_call(self) -> tuple[int | None, float | None, Any]:
        """Return position, running seconds and arguments of the running task, or three Nones."""
        number, began = self.position, self.began
        given = None if number == _NOBODY else self._arguments_of(number)
        if number == _NOBODY or number != self.position:
            return None, None, None
        return number, time.perf_counter() - began, given

    def interrupt(self, number: int) -> None:
        """Interrupt a task: skip it if it has not started, or raise an exception in its thread."""
        with self._lock:
            if number in self._skipped:
                return  # the second request for the same task
            self._skipped.add(number)
            if self.position != number:
                return
            logger.debug("task %d of bundle %s is interrupted", number, self.key)
            raise_in(self._thread)
        shown = getattr(self._functions[number], "__qualname__", self.key)

        def runs() -> bool:
            return not self._over and self.position == number

        def tell() -> None:  # the client knows the outcome: else Dask would run the task again
            self.send(op=RETURNED, numbers=EVERY, timings=self._timings_without(number))

        replace_if_stuck(self._worker, self.key, shown, runs, tell)

    def _timings_without(self, number: int) -> list[Any]:
        """Return the bundle's last timings as if its running task had ended when it was stopped."""
        with self._sending:
            self._send_outcomes(self._take(), time.perf_counter())
            if self._timed_out == number:
                self._count_late(number, None, time.perf_counter() - self.began)
            return self._last_timings(cancelled=int(self._timed_out != number))

    def interrupt_again(self) -> None:
        """Interrupt the running task if it was to be interrupted, and the interrupt was lost."""
        with self._lock:
            if self.position in self._skipped:
                raise_in(self._thread)

    def end(self) -> None:
        """Start no more tasks, and interrupt the running one."""
        self._take_waiting()
        number = self.position
        if number != _NOBODY:
            self.interrupt(number)

    def _take_waiting(self) -> list[int]:
        """Prevent the start of more tasks, and return the positions of tasks not started."""
        return list(self._waiting)

    def _check_after(self, seconds: float) -> None:
        self._worker.loop.add_callback(self._worker.loop.call_later, seconds, self._check)

    def _check(self) -> None:
        """Give back tasks that have not started, and send the outcomes of finished ones."""
        if self._over:
            return
        returned = [number for number in self._take_waiting() if number not in self._skipped]
        if returned:
            logger.debug("bundle %s returns %d tasks", self.key, len(returned))
            self.send(op=RETURNED, numbers=returned)
        with self._sending:
            if not self._over:
                self._send_outcomes(self._take(), max(self.began, self._sent_at))
        # A task that exceeds its time limit is interrupted.
        if self._timeout_s is None:
            return
        number, began = self.position, self.began
        is_late = began and time.perf_counter() - began >= self._timeout_s
        if is_late and number not in (_NOBODY, self._timed_out):
            logger.debug("task %d of bundle %s runs for too long", number, self.key)
            self._timed_out = number
            late = dump_error(too_long(self._functions[number], self._timeout_s))
            outcomes = dump(([number], [late], {number: ERROR}, None))
            self.send(op=OUTCOMES, outcomes=outcomes, busy_s=time.perf_counter() - began)
            self.interrupt(number)
        self._check_after(min(CHECK_S, self._timeout_s / 4))


# Interrupts ---------------------------------------------------------------------------------------

_raise_soon = ctypes.pythonapi.PyThreadState_SetAsyncExc


def offer_interrupts(worker: Worker) -> None:
    """Make the tasks of a worker interruptible. Idempotent."""
    guard_threads()
    offer_on_stream(worker, INTERRUPT, partial(interrupt, worker))


def raise_in(thread: int) -> None:
    """Raise :class:`CallInterrupted` in a thread, at its next bytecode instruction."""
    _notice_lost_interrupts()
    with uninterrupted(thread):
        _raise_soon(ctypes.c_ulong(thread), ctypes.py_object(CallInterrupted))


@cache
def _notice_lost_interrupts() -> None:
    """Repeat interrupts of destructors and garbage collection, whose exceptions Python drops."""
    print_unraisable = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        if not issubclass(unraisable.exc_type, CallInterrupted):
            print_unraisable(unraisable)
        elif (call := current_call()) is not None:
            run, loop = _running.get(call[1]), call[0].loop
            again = run.interrupt_again if run else partial(act_on_thread_of, *call, raise_in)
            loop.add_callback(loop.call_later, AGAIN_S, again)  # at once, it would hit this hook

    sys.unraisablehook = hook


def interrupt_task(worker: Worker, key: Any, *, cancelled: bool = False) -> None:
    """Interrupt a single Dask task. A finished task is not an error.
    ``cancelled`` says that the scheduler has released the task already.
    """
    thread = act_on_thread_of(worker, key, raise_in)
    if thread is not None:
        logger.debug("task %s is interrupted", key)
        replace_if_stuck(worker, key, str(key), lambda: runs_in(worker, thread, key))
    elif (state := running_state(worker, key)) is not None:
        if cancelled and state == "executing":
            logger.debug("task %s is not interrupted, because a client needs it again", key)
            return
        # Dask counts a task as running before a thread has begun it, and begins cancelled ones.
        again = partial(interrupt_task, worker, key, cancelled=state != "executing")
        worker.loop.call_later(AGAIN_S, again)


def replace_if_stuck(
    worker: Any,
    key: Any,
    shown: str,
    runs: Callable[[], bool],
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Replace the worker if an interrupted task keeps its slot and does not stop in time.
    ``tell`` is called once, before that.
    """

    def check() -> None:
        lender = getattr(worker, "slot_lender", None)
        give_up_on_call = getattr(worker, "give_up_on_call", None)
        if not runs():
            return
        if lender is not None and lender.lends(key):
            worker.loop.call_later(INTERRUPT_GRACE_S, check)
            return
        tell()
        if give_up_on_call is not None:
            logger.debug("worker %s is replaced: task %s does not stop", worker.address, shown)
            give_up_on_call(key, shown)
        else:
            words = "a task of %s was interrupted but still runs; this worker cannot be replaced"
            logger.warning(words, shown)

    worker.loop.call_later(INTERRUPT_GRACE_S, check)
