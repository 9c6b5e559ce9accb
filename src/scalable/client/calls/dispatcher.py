"""`Dispatcher`: sends the tasks of one executor in bundles.

A *bundle* is a batch of tasks that is sent as one Dask task. The *backlog* contains the tasks that
still wait in the client. A *slot* is the capacity for one task on a worker.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from concurrent.futures import CancelledError
from typing import Any

from scalable.client.calls.backlog import PendingCalls, SingleCalls
from scalable.client.calls.bundle_size import (
    AHEAD,
    FIRST,
    FIRST_S,
    TURN_S,
    BundleSizing,
)
from scalable.client.calls.futures import CallFuture
from scalable.client.calls.held_calls import HeldCalls
from scalable.client.calls.in_flight import BundlesInFlight
from scalable.client.calls.options import CallOptions
from scalable.client.calls.packing import PackedCalls, pack
from scalable.client.calls.sent_bundle import SentBundle
from scalable.client.calls.unfinished_calls import working
from scalable.client.calls.whereabouts import Whereabouts
from scalable.client.scheduler_line import SchedulerLine
from scalable.errors import ClusterError
from scalable.protocol.bundles import PROCESS
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.protocol.messages import Reference
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

    def __init__(self, line: SchedulerLine, options: CallOptions) -> None:
        self.tag = options.tag
        self.backlog: deque[PendingCalls] = deque()
        self.closed = False
        #: Key of the task that submits the tasks, or None if no task submits them.
        self.parent: Any = None
        self._line, self.options = line, options
        self._sizing = BundleSizing()
        self._in_flight = BundlesInFlight(
            line, options, self._sizing, self._put_back, self.wake, self._fail_waiting
        )
        self._held = HeldCalls(line, self._put_back_and_wake)
        self._awake = self._will_double = False
        self._at_first = FIRST
        self._id, self._task_name = uuid.uuid4().hex, options.task or options.name
        self._reported, self._will_report = 0, False
        line.follow_slots(self)

    # For any thread -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a check for tasks to send. If the dispatcher is closed, fail them."""
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
        """Number of tasks that wait or run."""
        return self._waiting() + self._in_flight.unfinished + self._held.unfinished

    @property
    def ends_with_script(self) -> bool:
        """True if a task submits the tasks, which then stop with its worker."""
        return self._line.lender is not None

    def give_up(self) -> None:
        """Cancel all tasks."""
        self._line.call_soon(self._fail_waiting, CancelledError())
        self._line.call_soon(self.cancel_all)

    @property
    def lookahead(self) -> int:
        """Number of waiting tasks that is enough to keep all slots busy."""
        return self._sizing.lookahead(self._in_flight.slots)

    # In the event loop --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if no task waits or runs, and the scheduler has recorded the end of all bundles."""
        return self._in_flight.idle and self._held.idle and not self._waiting()

    def cancel(self, future: CallFuture) -> None:
        """Cancel a task that was sent, even if it is running."""
        self._in_flight.cancel(future)

    def find(self, future: CallFuture) -> Whereabouts | None:
        """Return the position of a task with a future of its own, or None for another task."""
        bundle = self._in_flight.bundle_of(future)
        if bundle is not None or self._held.holds(future):
            return Whereabouts(self.tag, bundle, held=bundle is None)
        before = 0
        for pending in list(self.backlog):
            if isinstance(pending, SingleCalls):
                position = pending.position(future)
                if position is not None:
                    return Whereabouts(self.tag, before=before + position)
            before += len(pending)
        return None

    def withdraw_calls_of(self, pending: PendingCalls) -> None:
        """Withdraw the bundles of cancelled tasks that no worker has started."""
        self._in_flight.withdraw_calls_of(pending)

    def cancel_held(self) -> None:
        """Cancel the tasks that wait for their arguments."""
        self._held.cancel_all()

    def cancel_all(self) -> None:
        """Cancel every task that was sent and has not finished."""
        self._in_flight.cancel_all()
        self._held.cancel_all()

    def close(self, error: BaseException | None = None) -> None:
        """Stop sending, and fail every waiting or running task with the error."""
        self.closed = True
        error = error or ClusterError("the client was closed before the call had ended")
        self._in_flight.close(error)
        self._held.close(error)
        unread = ClusterError(f"not all arguments were read: {self._line.why_closed}")
        for pending in list(self.backlog):
            pending.end(unread)
        self._fail_waiting(error)
        working.discard(self)

    def report_again(self) -> None:
        """Report the backlog at the next check, even if it stays the same."""
        self._reported = 0

    def _fail_waiting(self, error: BaseException) -> None:
        """Fail all tasks in the backlog."""
        for pending in list(self.backlog):
            numbers = pending.take(len(pending) or 1)
            pending.settle(numbers, [(None, error)] * len(numbers))

    def _dispatch(self) -> None:
        # Reset this first, so that a task that is added from now on wakes the dispatcher again.
        self._awake = False
        self._fill()
        self._in_flight.withdraw()
        works = len(self._in_flight) or len(self._held) or self._waiting()
        working.add(self) if works else working.discard(self)
        if not self._will_report and self._waiting() != self._reported:
            self._will_report = True
            self._line.call_later(REPORT_BACKLOG_S, self._report_backlog)

    def _waiting(self) -> int:
        """Return the number of tasks in the backlog."""
        return 0 if self.closed else sum(map(len, list(self.backlog)))  # other threads append

    def _report_backlog(self) -> None:
        """Report how many slots the backlog needs to the scheduler, for adaptive pools."""
        self._will_report = False
        waiting = self._waiting()
        if waiting != self._reported:
            self._reported = waiting
            slots = waiting * self.options.slots_per_call
            self._line.report_backlog(self._id, self.tag, self._task_name, slots)

    def _fill(self) -> None:
        """Send bundles until each slot has ``AHEAD`` unfinished bundles or no task waits."""
        # There are few bundles until the duration of tasks is known. If many are sent, a later turn
        # of the event loop continues.
        slots, until = self._in_flight.slots, time.monotonic() + TURN_S
        most = self._most(AHEAD * slots)
        while len(self._in_flight) < most:
            pending = self._first()
            if pending is None:
                return
            numbers = pending.take(self._sizing.size(self._waiting(), slots))
            suspects = [number for number in numbers if pending.suspects(number)]
            for number in suspects:
                self._send(pending, [number])
            if others := [n for n in numbers if not pending.suspects(n)] if suspects else numbers:
                self._send(pending, others)
            if pending.takes_turns:
                self.backlog.rotate(-1)
            if time.monotonic() >= until:
                self.wake()
                return

    def _most(self, room: int) -> int:
        """Return how many bundles may be in flight, at most ``room``."""
        if room <= self._at_first or self._sizing.mean_s is not None:
            return room
        if self._waiting() and not self._will_double:
            self._will_double = True
            self._line.call_later(FIRST_S, self._double)
        return self._at_first

    def _double(self) -> None:
        """Increase the number of bundles in flight if tasks are longer than ``FIRST_S``."""
        self._will_double = False
        # A bundle that waits, or whose message is late on a busy machine, has no known duration.
        if 2 * self._in_flight.begun_bundles >= self._at_first:
            self._at_first *= 2
        self.wake()

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

    def _put_back_and_wake(self, pending: PendingCalls, numbers: list[Any]) -> None:
        self._put_back(pending, numbers)
        self.wake()

    def _send(self, pending: PendingCalls, numbers: list[Any]) -> None:
        """Send tasks whose arguments are complete. A task that cannot be sent fails."""
        try:
            for packed in pack(pending, numbers):
                if not self._held.hold(pending, packed):
                    self._submit(pending, packed)
        except BaseException as raised:  # noqa: BLE001 - it would end the event loop
            error = ClusterError(f"the call could not be sent: {raised!r}")
            pending.settle(numbers, [(None, error)] * len(numbers))

    def _submit(self, pending: PendingCalls, packed: PackedCalls) -> None:
        numbers, options = packed.numbers, self.options
        self._sizing.sent(len(numbers), len(packed.payload))
        key = f"{options.name}-bundle-{uuid.uuid4()}"
        suspected = pending.suspects(numbers[0])
        calls = set(range(len(numbers)))
        bundle = SentBundle(key, pending, numbers, calls, time.monotonic(), suspected)
        bundle.refusal_counts = not packed.references
        bundle.first_tries = self._in_flight.first_tries.take(pending, numbers)
        bundle.renewable = any(isinstance(r, Reference) for r in packed.references.values())
        header = {
            "key": key,
            "client": self._line.client_id,
            "code": self._line.code(),
            "functions": packed.functions,
            "timeout_s": options.timeout_s,
            "profile": pending.profile,
            "confirm": suspected,
            "record": options.record_calls,
            "process": PROCESS if options.stream_output else "",
            "first_tries": bundle.first_tries,
        }
        names = {options.name_of(pending.function(number)) for number in numbers[:NAMED]}
        self._task_name = names.pop() if len(names) == 1 else options.name
        logger.debug("bundle %s: %d calls, %d bytes", key, len(numbers), len(packed.payload))
        self._in_flight.add(bundle)
        try:
            bundle.future = self._line.submit_bundle(
                key,
                self._in_flight,
                (run_bundle, header, packed.payload, packed.futures),
                annotations={
                    BUNDLE_ANNOTATION: {
                        "calls": len(numbers),
                        "rows": options.record_calls,
                        **self._in_flight.sent_before.take(pending, numbers),
                    },
                    TASK_ANNOTATION: self._task_name,
                },
                resources=options.resources,
                parent=self.parent,
            )
        except BaseException as raised:  # noqa: BLE001 - it would end the event loop
            error = ClusterError(f"the call could not be sent: {raised!r}")
            self._line.call_soon(self._in_flight.erred, key, error)
