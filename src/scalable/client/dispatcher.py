"""`Dispatcher`: sends the tasks of one executor in bundles.

A *bundle* is a batch of tasks that is sent as one Dask task. The *backlog* contains the tasks that
still wait in the client. A *slot* is the capacity for one task on a worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - its part of the exit has to come later
import logging
import os
import sys
import threading
import time
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from distributed import Future

from scalable.client.backlog import CallOptions, PendingCalls, SentBundle, SingleCalls
from scalable.client.executor_connection import ExecutorConnection
from scalable.client.failures import name_of, parts_of_call, unsendable
from scalable.client.futures import CallFuture, Whereabouts
from scalable.client.in_flight import AHEAD, FIRST, TURN_S, BundlesInFlight, BundleSizing
from scalable.dask_compat.client import state_of
from scalable.errors import ClusterError
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.protocol.messages import Found, Reference, dump_calls, dump_function
from scalable.protocol.operations import PROCESS
from scalable.units import counted
from scalable.worker.bundles import run_bundle

logger = logging.getLogger("scalable.client")

#: Shortest time in seconds between two reports of the backlog to the scheduler.
REPORT_BACKLOG_S = 0.5
#: Number of tasks at the start of a bundle whose function names determine the bundle's task name.
NAMED = 8


class Dispatcher:
    """Sender of one executor's tasks to the workers of one tag.
    The methods up to :attr:`lookahead` may be called from any thread. All others run in the
    client's event loop.
    """

    def __init__(self, line: ExecutorConnection, options: CallOptions) -> None:
        self.tag = options.tag
        self.backlog: deque[PendingCalls] = deque()
        self.closed = False
        #: Key of the task that submits the tasks, or None if no task submits them.
        self.parent: Any = None
        self._line, self.options = line, options
        self._sizing = BundleSizing()
        self.in_flight = BundlesInFlight(
            line, options, self._sizing, self._put_back, self.wake, self._fail_waiting
        )
        #: Tasks that wait for their arguments.
        self.held = HeldCalls(line, self._put_back)
        self._awake = False
        self._id, self._task_name = uuid.uuid4().hex, options.task or options.name
        self._reported, self._will_report = 0, False
        line.follow_slots(self)

    # For any thread -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a check for tasks to send. If the dispatcher is closed, fail the tasks."""
        if self.closed:
            self.close()  # for tasks that were added at the same moment
            return
        if not self._awake:
            self._awake = True
            working.add(self)
            self._line.call_soon(self._dispatch)

    def offer(self, pending: PendingCalls) -> None:
        """Add pending tasks to the backlog, and schedule their sending."""
        self.backlog.append(pending)
        self.wake()

    @property
    def unfinished(self) -> int:
        return self._waiting() + self.in_flight.unfinished + self.held.unfinished

    @property
    def ends_with_script(self) -> bool:
        """True if another task submitted these tasks, so that they stop with its worker."""
        return self._line.lender is not None

    def give_up(self) -> None:
        """Cancel all tasks."""
        self._line.call_soon(self._fail_waiting, CancelledError())
        self._line.call_soon(self.cancel_all)

    @property
    def lookahead(self) -> int:
        """Number of waiting tasks that is enough to keep all slots busy."""
        return self._sizing.lookahead(self.in_flight.slots)

    # In the event loop --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if no task waits or runs, and the scheduler has recorded the end of all bundles."""
        return not (self.in_flight or self.held.unfinished or self._waiting())

    def find(self, future: CallFuture) -> Whereabouts | None:
        """Return the position of a task of this executor, or None for any other task."""
        bundle = self.in_flight.bundle_of(future)
        if bundle is not None or self.held.holds(future):
            return Whereabouts(self.tag, bundle, held=bundle is None)
        before = 0
        for pending in list(self.backlog):
            if isinstance(pending, SingleCalls):
                position = pending.position(future)
                if position is not None:
                    return Whereabouts(self.tag, before=before + position)
            before += len(pending)
        return None

    def cancel_all(self) -> None:
        self.in_flight.cancel_all()
        self.held.cancel_all()

    def close(self, error: BaseException | None = None) -> None:
        """Stop sending, and fail every waiting or running task with the error."""
        self.closed = True
        error = error or ClusterError("the client was closed before the task had finished")
        self.in_flight.close(error)
        self.held.close(error)
        unread = ClusterError(f"not all arguments were read: {self._line.why_closed}")
        for pending in list(self.backlog):
            pending.end(unread)
        self._fail_waiting(error)
        working.discard(self)

    def report_again(self) -> None:
        """Report the backlog at the next check, even if it stays the same."""
        self._reported = 0

    def _fail_waiting(self, error: BaseException) -> None:
        for pending in list(self.backlog):
            numbers = pending.take(len(pending) or 1)
            pending.fail(numbers, error)

    def _dispatch(self) -> None:
        # Reset this first, so that a task that is added from now on wakes the dispatcher again.
        self._awake = False
        self._fill()
        self.in_flight.withdraw()
        works = len(self.in_flight) or len(self.held) or self._waiting()
        working.add(self) if works else working.discard(self)
        if not self._will_report and self._waiting() != self._reported:
            self._will_report = True
            self._line.call_later(REPORT_BACKLOG_S, self._report_backlog)

    def _waiting(self) -> int:
        return 0 if self.closed else sum(map(len, list(self.backlog)))  # other threads append

    def _report_backlog(self) -> None:
        """Report to the scheduler how many slots the backlog needs, for adaptive pools."""
        self._will_report = False
        waiting = self._waiting()
        if waiting != self._reported:
            self._reported = waiting
            slots = waiting * self.options.slots_per_call
            self._line.report_backlog(self._id, self.tag, self._task_name, slots)

    def _fill(self) -> None:
        """Send bundles until each slot has ``AHEAD`` unfinished bundles or no task waits."""
        # There are few bundles until the duration of tasks is known: twice those that have started,
        # because a bundle that waits, or whose message is late on a busy machine, tells nothing. If
        # many are sent, a later turn of the event loop continues.
        slots, until = self.in_flight.slots, time.monotonic() + TURN_S
        most = AHEAD * slots
        if self._sizing.mean_s is None:
            most = min(most, max(FIRST, 2 * self.in_flight.begun_bundles))
        while len(self.in_flight) < most:
            pending = self._first()
            if pending is None:
                return
            numbers = pending.take(self._sizing.size(self._waiting(), slots))
            suspects = pending.suspects(numbers)
            for number in suspects:
                self._send(pending, [number])
            if others := [n for n in numbers if n not in suspects] if suspects else numbers:
                self._send(pending, others)
            if pending.takes_turns:
                self.backlog.rotate(-1)
            if time.monotonic() >= until:
                self.wake()
                return

    def _first(self) -> PendingCalls | None:
        """Return the first group of pending tasks that is not empty, or None if no task waits."""
        for _ in range(len(self.backlog)):
            pending = self.backlog[0]
            stays = pending.stays  # before the count: the last task may be added in between
            if len(pending):
                return pending
            self.backlog.rotate(-1) if stays else self.backlog.popleft()
        return None

    def _put_back(self, pending: PendingCalls, numbers: list[Any]) -> None:
        pending.put_back(numbers)
        if pending not in self.backlog:
            self.backlog.appendleft(pending)
        self.wake()

    def _send(self, pending: PendingCalls, numbers: list[Any]) -> None:
        """Send tasks whose arguments are complete. A task that cannot be sent fails."""
        try:
            for packed in pack(pending, numbers):
                if not self.held.hold(pending, packed):
                    self._submit(pending, packed)
        except BaseException as raised:  # noqa: BLE001 - it would end the event loop
            error = ClusterError(f"the task could not be sent: {raised!r}")
            pending.fail(numbers, error)

    def _submit(self, pending: PendingCalls, packed: PackedCalls) -> None:
        numbers, options = packed.numbers, self.options
        self._sizing.sent(len(numbers), len(packed.payload))
        key = f"{options.name}-bundle-{uuid.uuid4()}"
        suspected = bool(pending.suspects(numbers))
        bundle = SentBundle(key, pending, numbers, suspected, packed.references.values())
        header = {
            "key": key,
            "client": self._line.client_id,
            "code": self._line.code(),
            "functions": packed.functions,
            "timeout_s": options.timeout_s,
            "profile": pending.profile,
            "confirm": suspected,
            "record": options.record_calls,
            "process": PROCESS if options.stream_output and not self._line.shows_output else "",
            "group": pending.id,
            # Not a list, whose items Dask would search for futures.
            "ids": array("q", pending.ids(numbers)),
        }
        names = {options.name_of(pending.function(number)) for number in numbers[:NAMED]}
        self._task_name = names.pop() if len(names) == 1 else options.name
        logger.debug("bundle %s: %d tasks, %d bytes", key, len(numbers), len(packed.payload))
        self.in_flight.add(bundle)
        try:
            bundle.future = self._line.submit_bundle(
                key,
                self.in_flight,
                (run_bundle, header, packed.payload, packed.futures),
                annotations={
                    BUNDLE_ANNOTATION: {
                        "calls": len(numbers),
                        "rows": options.record_calls,
                        **pending.resent(numbers),
                    },
                    TASK_ANNOTATION: self._task_name,
                },
                resources=options.resources,
                parent=self.parent,
            )
        except BaseException as raised:  # noqa: BLE001 - it would end the event loop
            error = ClusterError(f"the task could not be sent: {raised!r}")
            self._line.call_soon(self.in_flight.erred, key, error)


# Held tasks ---------------------------------------------------------------------------------------

#: Seconds between two attempts to upload a lost argument, and between two checks of a result that
#: is computed again.
AGAIN_S = 0.5
#: Number of attempts to upload a lost argument.
ATTEMPTS = 10


@dataclass(eq=False)
class _Blocked:
    """Tasks with the same missing arguments."""

    pending: PendingCalls
    numbers: list[Any]

    def left(self) -> list[Any]:
        """Return the tasks for which a caller still waits."""
        return [number for number in self.numbers if not self.pending.is_over(number)]


class HeldCalls:
    """Tasks that wait for Dask futures or a lost argument. Used in the client's event loop."""

    def __init__(
        self, line: ExecutorConnection, put_back: Callable[[PendingCalls, list[Any]], None]
    ) -> None:
        self._line, self._put_back = line, put_back
        self._held: set[_Blocked] = set()

    def __len__(self) -> int:
        """Return the number of groups of tasks that wait for the same arguments."""
        return len(self._held)

    @property
    def unfinished(self) -> int:
        """Number of tasks for which a caller waits. May be read in any thread."""
        return sum(len(held.left()) for held in list(self._held))

    def holds(self, number: Any) -> bool:
        """Return whether a task waits for an argument."""
        return any(each is number for held in self._held for each in held.numbers)

    def hold(self, pending: PendingCalls, packed: PackedCalls) -> bool:
        """Return whether tasks wait for an argument. If so, put them back once it is available."""
        for key, each in packed.references.items():
            status = packed.futures[key].status
            is_lost = status == "cancelled" and isinstance(each, Reference)
            if is_lost or status in ("pending", "lost"):
                logger.debug("%d tasks wait for %s (%s)", len(packed.numbers), key, status)
                held = _Blocked(pending, packed.numbers)
                self._held.add(held)
                self._line.call_soon(self._wait, held, each)
                return True
        return False  # a failed argument too: Dask passes the error on to the task

    async def _wait(self, held: _Blocked, argument: Any) -> None:
        """Put tasks back once an argument is on the workers, or is computed again."""
        future = argument.future if isinstance(argument, Reference) else argument
        if future.status == "pending":
            await state_of(future).wait()
        elif future.status == "lost":
            await asyncio.sleep(AGAIN_S)
        elif future.status == "cancelled" and isinstance(argument, Reference):
            await self._restore(held, argument)
        if held in self._held:
            self._held.discard(held)
            self._put_back(held.pending, held.numbers)

    async def _restore(self, held: _Blocked, reference: Reference) -> None:
        """Restore a lost argument, or fail the tasks that wait for it."""
        for attempt in range(ATTEMPTS):
            if not held.left() or reference.future.status == "finished":
                return
            logger.debug("argument %s is uploaded to the workers again", reference.future.key)
            try:
                await reference.restore()
            except Exception as error:  # noqa: BLE001 - no worker is connected, or the user's code
                if attempt == ATTEMPTS - 1:
                    words = (
                        "an argument was lost with its worker; uploading it again failed: "
                        f"{error!r}"
                    )
                    held.pending.fail(held.numbers, ClusterError(words))
            else:
                return
            await asyncio.sleep(AGAIN_S)

    def cancel_all(self) -> None:
        """Cancel the tasks that have a future. The owner of the other tasks drops them."""
        for held in list(self._held):
            for number in held.left():
                if isinstance(number, CallFuture):
                    number.cancel()

    def close(self, error: BaseException) -> None:
        for held in list(self._held):
            held.pending.fail(held.numbers, error)
        self._held.clear()


# Packing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedCalls:
    """Tasks that can be sent together."""

    #: Numbers of the tasks in their :class:`PendingCalls`.
    numbers: list[Any]
    #: Digest and bytes of each function.
    functions: tuple[tuple[bytes, bytes], ...]
    #: Tasks as bytes.
    payload: bytes
    #: Dask futures and :class:`Reference` objects within the arguments, by key of the future. All
    #: tasks have the same, because a lost or failed one takes all tasks with it.
    references: Found

    @property
    def futures(self) -> dict[Any, Future[Any]]:
        """Dask futures of the references, by key."""
        return {
            key: each.future if isinstance(each, Reference) else each
            for key, each in self.references.items()
        }


def pack(pending: PendingCalls, numbers: list[Any]) -> Iterator[PackedCalls]:
    """Pack tasks into one or several bundles. A task that cannot be pickled fails."""
    functions: dict[tuple[bytes, bytes], int] = {}
    known: dict[int, int] = {}

    def index(function: Callable[..., Any]) -> int:
        if (place := known.get(id(function))) is None:
            place = functions.setdefault(dump_function(function), len(functions))
            known[id(function)] = place
        return place

    packed, calls = pending.calls(numbers, index)
    if not packed:
        return
    try:
        payload, found = dump_calls(calls)
    except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
        if len(packed) == 1:
            _, rows, named = calls
            function = pending.function(packed[0])
            parts = parts_of_call(function, rows[0], named[0] if named else None)
            pending.fail(packed, unsendable(name_of(function), parts) or error)
        else:
            for number in packed:  # the other tasks may be fine
                yield from pack(pending, [number])
        return
    groups: dict[frozenset[Any], list[Any]] = {}
    for number, references in zip(packed, found, strict=False):
        groups.setdefault(frozenset(references), []).append(number)
    if len(groups) > 1:
        for group in groups.values():
            yield from pack(pending, group)
    else:
        yield PackedCalls(packed, tuple(functions), payload, found[0] if found else {})


# Unfinished tasks ---------------------------------------------------------------------------------

#: Seconds of waiting after which a message is logged.
SAY_AFTER_S = 2.0
LOOK_S = 0.05


#: Senders with tasks that may not have finished. They must not vanish before, even if the user has
#: kept neither the executor nor a future.
working: set[Dispatcher] = set()


def _unfinished() -> int:
    return sum(each.unfinished for each in list(working) if not each.ends_with_script)


def wait_at_exit() -> None:
    """Wait until all executors' tasks have finished. Ctrl-C, now or before, cancels them."""
    if not _unfinished():
        return
    if not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        try:
            _wait()
        except KeyboardInterrupt:
            logger.debug("interrupted while waiting for the tasks of executors")
    if calls := _unfinished():
        logger.warning("%d tasks of executors are cancelled", calls)
        for each in list(working):
            each.give_up()


def _wait() -> None:
    say_at: float | None = time.monotonic() + SAY_AFTER_S
    while calls := _unfinished():
        if say_at is not None and time.monotonic() > say_at:
            say_at = None
            logger.warning(
                "the script waits for %s of its executors before it exits; Ctrl-C cancels them",
                counted(calls, "unfinished task"),
            )
        time.sleep(LOOK_S)


_threading: Any = threading
_threading._register_atexit(wait_at_exit)  # noqa: SLF001 - as concurrent.futures does
os.register_at_fork(after_in_child=working.clear)
