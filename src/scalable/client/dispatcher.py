"""`Dispatcher`: sends the tasks of one executor in bundles, and handles the messages about them.

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
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import compress, count, islice, takewhile
from typing import Any

from distributed import Future
from distributed.scheduler import KilledWorker

from scalable.client.backlog import (
    Bundle,
    CallOptions,
    Functions,
    PendingCalls,
    SingleCalls,
    items,
    loaded,
    not_sent,
    pack,
)
from scalable.client.bundle_sizes import AHEAD, BundleSizing
from scalable.client.executor_connection import ExecutorConnection
from scalable.client.futures import CallFuture, MeasuredCalls, name_of_call
from scalable.dask_compat.client import state_of
from scalable.errors import ClusterError, NoWorkersError
from scalable.protocol.failures import LOSSES, OutOfMemory, is_given_up, note_call
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.protocol.messages import (
    Reference,
    load,
)
from scalable.protocol.operations import (
    EVERY,
    KEPT,
    PLAIN,
    PROCESS,
)
from scalable.units import counted
from scalable.views.explanation import TaskFacts
from scalable.worker.bundles import run_bundle

logger = logging.getLogger("scalable.client")

#: Shortest time in seconds between two reports of the backlog to the scheduler.
REPORT_BACKLOG_S = 0.5
#: Number of tasks at the start of a bundle whose function names determine the bundle's task name.
NAMED = 8
#: Number of bundles that are in flight at first: tasks may be short, and are better sent together
#: then. The more of them have started without an outcome, the longer the tasks are.
FIRST = 32
#: Seconds after which a turn of the event loop stops sending bundles, so that the loop continues.
TURN_S = 0.01
#: Seconds between two attempts to upload a lost argument, and between two checks of a result that
#: is computed again.
AGAIN_S = 0.5
#: Number of attempts to upload a lost argument.
ATTEMPTS = 10


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
        #: The bundles whose Dask tasks have not finished.
        self._bundles: dict[str, Bundle] = {}
        #: Those among them that are not known to have started, in the order in which they were
        #: sent.
        self._unbegun: dict[str, Bundle] = {}
        #: Bundles that are not sent, because they wait for an argument.
        self._held: set[Bundle] = set()
        #: Tasks that wait until the futures among their arguments are done.
        self.incomplete: set[CallFuture] = set()
        self._withdrawals, self._will_look = Withdrawals(), False
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
        """Number of tasks that wait or run, and for which a caller waits."""
        # In the order in which a task passes them, so that none is missed.
        incomplete = sum(not future.done() for future in list(self.incomplete))
        waiting = self._waiting() + sum(len(bundle.left()) for bundle in list(self._held))
        sent = sum(bundle.open.count(1) for bundle in list(self._bundles.values()))
        return incomplete + waiting + sent

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
        return self._sizing.lookahead(self._slots)

    @property
    def _slots(self) -> int:
        """Number of tasks that can run at once, at least 1."""
        return max(1, self._line.slots_of(self.tag) // self.options.slots_per_call)

    @property
    def _begun_bundles(self) -> int:
        return len(self._bundles) - len(self._unbegun)

    # In the event loop --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if no task waits or runs, and the scheduler has recorded the end of all bundles."""
        return not (self._bundles or self.unfinished)

    def find(self, future: CallFuture) -> TaskFacts | None:
        """Return the facts about a task that waits here, or None for any other. For any thread."""
        name = name_of_call(future)
        if any(future in bundle.numbers for bundle in list(self._held)):
            return TaskFacts(name, name, self.tag, "held")
        before = 0
        for pending in list(self.backlog):
            if isinstance(pending, SingleCalls):
                position = pending.position(future)
                if position is not None:
                    return TaskFacts(name, name, self.tag, "backlog", before=before + position)
            before += len(pending)
        return None

    def close(self, error: BaseException | None = None) -> None:
        """Stop sending, and fail every waiting or running task with the error."""
        self.closed = True
        error = error or ClusterError("the client was closed before the task had finished")
        for bundle in [*self._bundles.values(), *self._held]:
            bundle.fail(bundle.left(), error)
        for bundles in (self._bundles, self._unbegun, self._held):
            bundles.clear()
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

    def _waiting(self) -> int:
        return 0 if self.closed else sum(map(len, list(self.backlog)))  # other threads append

    def _report_backlog(self) -> None:
        """Report to the scheduler how many slots the backlog needs."""
        waiting = self._waiting()
        if waiting != self._reported:
            self._reported = waiting
            slots = waiting * self.options.slots_per_call
            self._line.report_backlog(self._id, self.tag, self._task_name, slots)

    def _report_soon(self) -> None:
        """Report a larger backlog, unless it is gone in a moment: adaptive pools would grow."""
        self._will_report = False
        self._report_backlog()

    # Sending ------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        # Reset this first, so that a task that is added from now on wakes the dispatcher again.
        self._awake = False
        self._fill()
        self._withdraw()
        works = self._bundles or self._held or self.incomplete or self._waiting()
        working.add(self) if works else working.discard(self)
        if self._waiting() < self._reported:
            self._report_backlog()  # at once: the scheduler counts the tasks that were sent
        elif not self._will_report and self._waiting() != self._reported:
            self._will_report = True
            self._line.call_later(REPORT_BACKLOG_S, self._report_soon)

    def _fill(self) -> None:
        """Send bundles until each slot has ``AHEAD`` unfinished bundles or no task waits."""
        # There are few bundles until the duration of tasks is known: twice those that have started,
        # because a bundle that waits, or whose message is late on a busy machine, tells nothing. If
        # many are sent, a later turn of the event loop continues.
        slots, until = self._slots, time.monotonic() + TURN_S
        most = AHEAD * slots
        if self._sizing.mean_s is None:
            most = min(most, max(FIRST, 2 * self._begun_bundles))
        while len(self._bundles) < most:
            pending = self._first()
            if pending is None:
                return
            numbers = pending.take(self._sizing.size(self._waiting(), slots))
            suspects = pending.suspects(numbers)
            for number in suspects:
                self._send(pending, [number])
            if others := [n for n in numbers if n not in suspects] if suspects else numbers:
                self._send(pending, others)
            if pending.stays and not isinstance(pending, SingleCalls):
                self.backlog.rotate(-1)  # to the next group: this one may never become empty
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

    def _send(self, pending: PendingCalls, numbers: Sequence[Any]) -> None:
        """Send tasks whose arguments are complete. A task that cannot be sent fails."""
        for bundle, functions, payload in pack(pending, numbers):
            try:
                if not self._hold(bundle):
                    self._submit(bundle, functions, payload)
            except BaseException as raised:  # noqa: BLE001 - it would end the event loop
                bundle.fail(bundle.left(), not_sent(raised))
                self._release(bundle)

    def _submit(self, bundle: Bundle, functions: Functions, payload: bytes) -> None:
        pending, numbers, options = bundle.pending, bundle.numbers, self.options
        ids = pending.ids(numbers)
        self._sizing.sent(len(numbers), len(payload))
        key = bundle.key = f"{options.name}-bundle-{uuid.uuid4()}"
        header = {
            "key": key,
            "client": self._line.client_id,
            "code": self._line.code(),
            "functions": functions,
            "timeout_s": options.timeout_s,
            "profile": pending.profile,
            "confirm": bundle.suspected,
            "record": options.record_calls,
            "process": PROCESS if options.stream_output and not self._line.shows_output else "",
            "group": pending.id,
            # Not a list, whose items Dask would search for futures.
            "ids": ids if isinstance(ids, range) else array("q", ids),
        }
        # A task that another thread has cancelled since has another function.
        names = {options.name_of(pending.function(number)) for number in numbers[:NAMED]}
        bundle.name = next(iter(names)) if len(functions) == len(names) == 1 else ""
        self._task_name = names.pop() if len(names) == 1 else options.name
        logger.debug("bundle %s: %d tasks, %d bytes", key, len(numbers), len(payload))
        self._bundles[key] = self._unbegun[key] = bundle
        pending.sent(numbers, key)
        bundle.future = self._line.submit_bundle(
            key,
            self,
            (run_bundle, header, payload, bundle.futures),
            annotations={
                BUNDLE_ANNOTATION: {"rows": options.record_calls, **bundle.about()},
                TASK_ANNOTATION: self._task_name,
            },
            resources=options.resources,
            parent=self.parent,
        )

    # Waiting for arguments ----------------------------------------------------------------------

    def _hold(self, bundle: Bundle) -> bool:
        """Return whether tasks wait for an argument. If so, put them back once it is available."""
        for key, future in bundle.futures.items():
            argument = bundle.references[key]
            is_lost = future.status == "cancelled" and isinstance(argument, Reference)
            if is_lost or future.status in ("pending", "lost"):
                logger.debug("%d tasks wait for %s (%s)", len(bundle.numbers), key, future.status)
                self._held.add(bundle)
                self._line.call_soon(self._await, bundle, future, argument)
                return True
        return False  # a failed argument too: Dask passes the error on to the task

    async def _await(self, bundle: Bundle, future: Future[Any], argument: Any) -> None:
        """Put tasks back once an argument is on the workers, or is computed again."""
        if future.status == "pending":
            await state_of(future).wait()
        elif future.status == "lost":
            await asyncio.sleep(AGAIN_S)
        elif future.status == "cancelled" and isinstance(argument, Reference):
            await self._restore(bundle, argument)
        if bundle in self._held:
            self._held.discard(bundle)
            self._put_back(bundle, bundle.left())

    async def _restore(self, bundle: Bundle, reference: Reference) -> None:
        """Restore a lost argument, or fail the tasks that wait for it."""
        for attempt in range(ATTEMPTS):
            if not bundle.left() or reference.future.status == "finished":
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
                    bundle.fail(bundle.left(), ClusterError(words))
            else:
                return
            await asyncio.sleep(AGAIN_S)

    # Messages of workers ------------------------------------------------------------------------

    def begun(self, key: str) -> None:
        if (bundle := self._unbegun.pop(key, None)) is not None:
            logger.debug("bundle %s has started", key)
            self._withdrawals.began(bundle)
            self.wake()

    def outcomes(self, key: str, outcomes: bytes, busy_s: float) -> None:
        """Store outcomes, a pickled tuple of positions, values, kinds and measurements.
        ``busy_s`` is the worker's time for them in seconds.
        """
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        positions, values, kinds, measured = load(outcomes)
        ended = items(bundle.numbers, positions)
        self._sizing.observe(len(ended), busy_s)
        self._sizing.received(len(ended), len(outcomes))
        if measured is not None:
            self._store_measures(bundle, ended, measured)
        if kinds or 0 in items(bundle.open, positions):
            self._settle(bundle, positions, values, kinds)
        else:
            bundle.close(positions)
            bundle.pending.settle(ended, values)
        bundle.heard_at = time.monotonic()

    def _settle(
        self,
        bundle: Bundle,
        positions: Iterable[int],
        values: Sequence[Any],
        kinds: Mapping[int, int],
    ) -> None:
        numbers, results, errors = [], [], []
        for position, value in zip(positions, values, strict=True):
            kind = kinds.get(position, PLAIN)
            if not bundle.open[position]:  # it was cancelled
                continue
            if kind == KEPT:
                bundle.kept.append(position)
                continue
            bundle.close([position])
            numbers.append(bundle.numbers[position])
            result, error = loaded(kind, value)
            results.append(result)
            errors.append(error)
        bundle.pending.settle(numbers, results, errors)

    def _store_measures(
        self, bundle: Bundle, numbers: Sequence[Any], measured: tuple[Any, ...]
    ) -> None:
        functions = map(bundle.pending.function, () if bundle.name else numbers)
        known, name_of = dict[int, str](), self.options.name_of  # some cannot be hashed
        names = [known.get(id(f)) or known.setdefault(id(f), name_of(f)) for f in functions]
        bundle.pending.measured(numbers, MeasuredCalls(names or [bundle.name], self.tag, *measured))

    def returned(self, key: str, numbers: Sequence[int] | int) -> None:
        """Put unstarted tasks back into the backlog: those at some positions, or ``EVERY`` one."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if isinstance(numbers, int):
            logger.debug("bundle %s was returned as a whole", key)
            self._release(bundle)
            return
        self._sizing.at_least(time.monotonic() - bundle.heard_at)
        given = [position for position in numbers if bundle.open[position]]
        logger.debug("bundle %s takes long and returns %d tasks", key, len(given))
        bundle.close(given)
        self._put_back(bundle, given)
        if 1 not in bundle.open:  # a cancelled task is left: it must not run again with its bundle
            self._release(bundle)

    # News of Dask tasks -------------------------------------------------------------------------

    def in_memory(self, key: str) -> None:
        """Handle the success of a bundle's Dask task: fetch the results that the worker kept."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if not bundle.kept or self._stay(bundle):
            self._release(bundle)
        else:
            self._line.call_soon(self._fetch, bundle)

    def _stay(self, bundle: Bundle) -> bool:
        """Leave results on the workers if only other tasks need them. Return whether they stay."""
        futures = [bundle.numbers[position] for position in bundle.kept]
        for future in futures:
            if not isinstance(future, CallFuture) or not (future.may_stay or future.done()):
                return False
        for position, future in zip(bundle.kept, futures, strict=True):
            if future.call is not None and future.home is not None:  # else it was cancelled
                future.keep(bundle.future, position)
                bundle.pending.settle([future], [None])
        bundle.close(bundle.kept)
        bundle.kept.clear()
        bundle.future = None  # it belongs to the references now
        return True

    async def _fetch(self, bundle: Bundle) -> None:
        assert bundle.future is not None
        try:
            kept = await self._line.fetch(bundle.future)
        except Exception as error:  # noqa: BLE001 - its worker may be lost in this moment
            self.erred(bundle.key, error)
            return
        if not self._is_open(bundle):
            return
        values = kept or {}
        self._sizing.received(len(values), sum(map(sys.getsizeof, values.values())))
        for position in bundle.kept:
            if position in values:
                value, raised = await asyncio.to_thread(loaded, KEPT, values[position])
                if not self._is_open(bundle):
                    return
                if bundle.open[position]:  # it may have been cancelled in the meantime
                    bundle.close([position])
                    bundle.pending.settle([bundle.numbers[position]], [value], [raised])
        bundle.kept.clear()
        self._release(bundle)

    def _is_open(self, bundle: Bundle) -> bool:
        """Return whether a bundle was not released during a wait, and its tasks queued again."""
        return self._bundles.get(bundle.key) is bundle

    def erred(self, key: str, error: BaseException) -> None:
        """Handle a bundle whose Dask task has failed or whose worker was lost."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if isinstance(error, KilledWorker):
            begun, call_s = key not in self._unbegun, self._sizing.mean_s or 0.0
            losses = bundle.count_loss(call_s, begun=begun)
            if bundle.suspected and is_given_up(losses, type(error).__name__):
                self._line.call_soon(self._give_up, bundle, error)
                return
            logger.debug("bundle %s was lost with worker %s", key, error.last_worker)
        else:
            logger.debug("bundle %s has failed: %r", key, error)
            bundle.fail(bundle.left(), error)
            # With arguments, the refusal may be that of a task whose result is one of them.
            if isinstance(error, NoWorkersError) and not bundle.references:
                self._sizing.refused()
                # With one refusal after the other, a long backlog would take hours.
                self._fail_waiting(error)
        self._release(bundle)

    async def _give_up(self, bundle: Bundle, error: KilledWorker) -> None:
        """Fail a task that has lost too many workers, with the reasons."""
        function = bundle.pending.function(bundle.numbers[0])
        name = getattr(function, "__qualname__", bundle.key)
        if isinstance(error, OutOfMemory):
            error = error.of_call(name)
        else:
            error = KilledWorker(name, error.last_worker, LOSSES - 1)
        error = await self._line.with_reasons(error, bundle.key)
        if not self._is_open(bundle):
            return
        note_call(error, name, bundle.arguments(), None)
        bundle.fail(bundle.left(), error)
        self._release(bundle)

    def lost(self, key: str, *, with_all: bool) -> None:
        """Handle a bundle that the scheduler has lost, ``with_all`` others if it was restarted."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        logger.debug("bundle %s is unknown to the scheduler", key)
        uploaded = any(isinstance(each, Reference) for each in bundle.references.values())
        if not with_all and (bundle.kept or uploaded):
            self._release(bundle)  # what was on a lost worker is computed or uploaded again
            return
        error = ClusterError(
            "the task was lost: the cluster was restarted, or lost an object that it needs",
            hint="upload large objects again with send(), and submit the task again",
        )
        self.erred(key, error)

    # Cancelling ---------------------------------------------------------------------------------

    def cancel(self, future: CallFuture) -> None:
        """Cancel a task that was sent, even if it is running. Do nothing for another task."""
        # A program may cancel all its tasks one by one: no other bundle is searched.
        bundle = self._bundles.get(future.bundle or "")
        if bundle is not None:
            self._cancel(bundle, bundle.position_of(future))

    def _cancel(self, bundle: Bundle, position: int) -> None:
        logger.debug("task %d of bundle %s is cancelled", position, bundle.key)
        bundle.close([position])
        self._line.interrupt(bundle.key, position)
        if 1 not in bundle.open:  # no matter whether the bundle runs or waits at its worker
            self._release(bundle)

    def cancel_held(self) -> None:
        """Cancel the tasks that wait for an argument. The owner of mapped tasks drops them."""
        for bundle in list(self._held):
            for position in bundle.left():
                if isinstance(future := bundle.numbers[position], CallFuture):
                    future.cancel()

    def cancel_all(self) -> None:
        """Cancel every task that was sent and has not finished."""
        for bundle in list(self._bundles.values()):
            for position in compress(count(), bytes(bundle.open)):
                number = bundle.numbers[position]
                if isinstance(number, CallFuture):
                    number.cancel()
                else:
                    self._cancel(bundle, position)
        self.cancel_held()

    # Withdrawals --------------------------------------------------------------------------------

    def _withdraw(self) -> None:
        """Withdraw bundles that wait at a busy worker while a slot is free."""
        waiting, now, call_s = self._unbegun.values(), time.monotonic(), self._sizing.mean_s or 0.0
        wanted = self._withdrawals.wanted(waiting, self._begun_bundles, self._slots, now, call_s)
        for bundle in wanted:
            logger.debug(
                "bundle %s is recalled, because it waits for a slot while others run", bundle.key
            )
            bundle.withdrawn = True
            self._line.interrupt(bundle.key, EVERY)
        if self._withdrawals.looks_again and not self._will_look:
            self._will_look = True
            self._line.call_later(FREE_S, self._look_again)

    def _look_again(self) -> None:
        self._will_look = False
        self.wake()

    def withdraw_calls_of(self, pending: PendingCalls) -> None:
        """Withdraw the unstarted bundles of cancelled tasks."""
        for bundle in self._unbegun.values():
            if bundle.pending is pending:
                logger.debug("bundle %s is recalled, because its tasks are cancelled", bundle.key)
                self._line.interrupt(bundle.key, EVERY)

    # Ending -------------------------------------------------------------------------------------

    def _put_back(self, bundle: Bundle, positions: Sequence[int]) -> None:
        """Queue tasks of a bundle again, ahead of all others."""
        bundle.pending.put_back([bundle.numbers[position] for position in positions])
        if bundle.pending not in self.backlog:
            self.backlog.appendleft(bundle.pending)
        self.wake()

    def _release(self, bundle: Bundle) -> None:
        """Release the Dask task of a bundle, and queue its unfinished tasks again."""
        if self._bundles.pop(bundle.key, None) is None:
            return
        self._unbegun.pop(bundle.key, None)
        if left := bundle.left():  # cancelled with its bundle, or without a message
            logger.debug("bundle %s has finished, %d tasks are queued again", bundle.key, len(left))
            lost = [p for p in left if p in bundle.kept] or left[:1]
            bundle.pending.note_lost([bundle.numbers[p] for p in lost], bundle.key)
            self._put_back(bundle, left)
        self._line.forget_bundle(bundle.key)
        if bundle.future is not None:
            bundle.future.release()
        self.wake()


# Withdrawals --------------------------------------------------------------------------------------

#: Seconds for which a slot has to be free before a bundle is withdrawn for it: a slot is also free
#: for a moment between two bundles.
FREE_S = 0.1
#: Upper limit of this time in seconds. The time doubles with each withdrawal, because the slot may
#: be in use by another client.
LONGEST_S = 5.0
#: A bundle that waits for so many seconds, and for as long as so many usual tasks take, is
#: withdrawn once a later one has started: it waits behind a task that is longer than others.
STUCK_S, STUCK_CALLS = 0.5, 10


class Withdrawals:
    """Choice of the bundles to withdraw for free slots."""

    def __init__(self) -> None:
        self._free_since: float | None = None
        self._patience_s = FREE_S
        self._latest_begun = 0.0

    def began(self, bundle: Bundle) -> None:
        """Record the sending time of a bundle that has started."""
        self._latest_begun = max(self._latest_begun, bundle.heard_at)

    def wanted(
        self,
        waiting: Collection[Bundle],
        begun: int,
        slots: int,
        now: float,
        call_s: float = 0.0,
    ) -> list[Bundle]:
        """Return the bundles to withdraw: stuck ones, or else the latest, one for each free slot.
        Never searches all bundles. ``now`` is in monotonic seconds, ``call_s`` in seconds per task.
        """
        before = min(self._latest_begun, now - STUCK_S - STUCK_CALLS * call_s)
        overtaken = takewhile(lambda bundle: bundle.heard_at < before, waiting)
        if stuck := [b for b in islice(overtaken, slots) if not b.withdrawn]:
            return stuck
        free = slots - begun
        if free <= 0 or not waiting:
            self._free_since, self._patience_s = None, FREE_S
            return []
        if self._free_since is None:
            self._free_since = now
        if now - self._free_since < self._patience_s:
            return []
        self._free_since = now
        self._patience_s = min(2 * self._patience_s, LONGEST_S)
        latest_first: Iterable[Bundle] = reversed(waiting)  # type: ignore[call-overload]
        return list(islice((b for b in latest_first if not b.withdrawn), free))

    @property
    def looks_again(self) -> bool:
        """True if a slot is free while a bundle waits."""
        return self._free_since is not None


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
