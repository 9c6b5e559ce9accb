"""The bundles of one executor that were sent and have not finished.

A *bundle* is a batch of tasks that is sent as one Dask task.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any

from distributed.scheduler import KilledWorker

from scalable import settings
from scalable.client.backlog import CallOptions, PendingCalls, SentBundle
from scalable.client.executor_connection import ExecutorConnection
from scalable.client.failures import with_package
from scalable.client.futures import CallFuture, MeasuredCalls
from scalable.dask_compat.client import not_loaded
from scalable.errors import NoWorkersError
from scalable.protocol.failures import MOST_OUT_OF_MEMORY, OutOfMemory, note_call, shown_arguments
from scalable.protocol.messages import Reference, load, load_error
from scalable.protocol.operations import (
    ERROR,
    EVERY,
    INTERRUPT_GRACE_S,
    KEPT,
    PICKLED,
    PLAIN,
    TELL_S,
    too_long,
)

logger = logging.getLogger("scalable.client")


class BundlesInFlight:
    """Sent bundles of one executor, and their message handlers. Used in the event loop only."""

    def __init__(
        self,
        line: ExecutorConnection,
        options: CallOptions,
        sizing: BundleSizing,
        put_back: Callable[[PendingCalls, list[Any]], None],
        dispatch: Callable[[], None],
        fail_waiting: Callable[[BaseException], None],
    ) -> None:
        self._line, self._options, self._sizing = line, options, sizing
        self._put_back, self._dispatch = put_back, dispatch
        self._fail_waiting = fail_waiting
        #: The bundles whose Dask tasks have not finished.
        self._bundles: dict[str, SentBundle] = {}
        #: Those among them that are not known to have started, in the order in which they were
        #: sent.
        self._unbegun: dict[str, SentBundle] = {}
        self._withdrawals, self._will_look = Withdrawals(), False

    def __len__(self) -> int:
        """Return the number of bundles whose Dask tasks have not finished."""
        return len(self._bundles)

    @property
    def unfinished(self) -> int:
        """Number of tasks that were sent and have not finished. May be read in any thread."""
        return sum(len(bundle.open) for bundle in list(self._bundles.values()))

    @property
    def begun_bundles(self) -> int:
        """Number of bundles that have started and not finished, as far as known."""
        return len(self._bundles) - len(self._unbegun)

    @property
    def slots(self) -> int:
        """Number of tasks that can run at once, at least 1."""
        return max(1, self._line.slots_of(self._options.tag) // self._options.slots_per_call)

    def add(self, bundle: SentBundle) -> None:
        self._bundles[bundle.key] = self._unbegun[bundle.key] = bundle
        bundle.pending.sent(bundle.numbers, bundle.key)

    def bundle_of(self, future: CallFuture) -> str | None:
        """Return the key of the bundle with which a task was sent, or None if it was not sent."""
        return future.bundle if future.bundle in self._bundles else None

    # Withdrawals --------------------------------------------------------------------------------

    def withdraw(self) -> None:
        """Withdraw bundles that wait at a busy worker while a slot is free."""
        waiting, begun = self._unbegun.values(), self.begun_bundles
        call_s = self._sizing.mean_s or 0.0
        for bundle in self._withdrawals.wanted(
            waiting, begun, self.slots, time.monotonic(), call_s
        ):
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
        self._dispatch()

    # Messages of workers ------------------------------------------------------------------------

    def begun(self, key: str) -> None:
        if (bundle := self._unbegun.pop(key, None)) is not None:
            logger.debug("bundle %s has started", key)
            self._withdrawals.began(bundle)
            self._dispatch()

    def outcomes(self, key: str, outcomes: bytes, busy_s: float) -> None:
        """Store outcomes, a pickled tuple of positions, values, kinds and measurements.
        ``busy_s`` is the worker's time for them in seconds.
        """
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        positions, values, kinds, measured = load(outcomes)
        ended = [bundle.numbers[position] for position in positions]
        self._sizing.observe(len(ended), busy_s)
        self._sizing.received(len(ended), len(outcomes))
        if measured is not None:
            self._store_measures(bundle, ended, measured)
        if kinds or not bundle.open.issuperset(positions):
            self._settle(bundle, positions, values, kinds)
        else:
            bundle.open.difference_update(positions)
            bundle.pending.settle(ended, values)
        bundle.heard_at = time.monotonic()

    def _settle(
        self,
        bundle: SentBundle,
        positions: Iterable[int],
        values: Sequence[Any],
        kinds: Mapping[int, int],
    ) -> None:
        numbers, results, errors = [], [], []
        for position, value in zip(positions, values, strict=True):
            kind = kinds.get(position, PLAIN)
            if position not in bundle.open:  # it was cancelled
                continue
            if kind == KEPT:
                bundle.kept.append(position)
                continue
            bundle.open.remove(position)
            numbers.append(bundle.numbers[position])
            result, error = loaded(kind, value)
            results.append(result)
            errors.append(error)
        bundle.pending.settle(numbers, results, errors)

    def _store_measures(
        self, bundle: SentBundle, numbers: Sequence[Any], measured: tuple[Any, ...]
    ) -> None:
        functions = list(map(bundle.pending.function, numbers))
        distinct = {id(function): function for function in functions}  # some cannot be hashed
        names = {key: self._options.name_of(function) for key, function in distinct.items()}
        told = [names[id(f)] for f in functions] if len(names) > 1 else list(names.values())
        bundle.pending.measured(numbers, MeasuredCalls(told, self._options.tag, *measured))

    def returned(self, key: str, numbers: Sequence[int] | int) -> None:
        """Put unstarted tasks back into the backlog: those at some positions, or ``EVERY`` one."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if isinstance(numbers, int):
            logger.debug("bundle %s was returned as a whole", key)
            self._release(key)
            return
        self._sizing.at_least(time.monotonic() - bundle.heard_at)
        given = [position for position in numbers if position in bundle.open]
        logger.debug("bundle %s takes long and returns %d tasks", key, len(given))
        bundle.open.difference_update(given)
        self._wait_again(bundle, given)
        if not bundle.open:  # only a cancelled task is left: it must not run again with its bundle
            self._release(key)

    def timed_out(self, key: str, number: int) -> None:
        """Fail the task at a position of a bundle, because it exceeded its time limit."""
        bundle = self._bundles.get(key)
        if bundle is None or number not in bundle.open:
            return
        logger.debug("task %d of bundle %s ran for too long", number, key)
        function = bundle.pending.function(bundle.numbers[number])
        bundle.fail([number], too_long(function, self._options.timeout_s or 0.0))
        self._line.call_later(INTERRUPT_GRACE_S / 2, partial(self._release_unended, key))

    def _release_unended(self, key: str) -> None:
        """Release the bundle of a task that does not stop, so that Dask does not rerun it."""
        bundle = self._bundles.get(key)
        if bundle is not None and bundle.future is not None and not bundle.future.done():
            self._release(key)

    # News of Dask tasks -------------------------------------------------------------------------

    def in_memory(self, key: str) -> None:
        """Handle the success of a bundle's Dask task: fetch the results that the worker kept."""
        bundle = self._bundles.get(key)
        if bundle is None or not bundle.kept or self._stay(bundle):
            self._release(key)
        else:
            self._line.call_soon(self._fetch, bundle)

    def _stay(self, bundle: SentBundle) -> bool:
        """Leave results on the workers if only other tasks need them. Return whether they stay."""
        futures = [bundle.numbers[position] for position in bundle.kept]
        for future in futures:
            if not isinstance(future, CallFuture) or not (future.may_stay or future.done()):
                return False
        for position, future in zip(bundle.kept, futures, strict=True):
            if future.call is not None and future.home is not None:  # else it was cancelled
                future.kept = future.home.of(bundle.future, position, future.call)
                bundle.pending.settle([future], [None])
        bundle.open.difference_update(bundle.kept)
        bundle.kept.clear()
        bundle.future = None  # it belongs to the references now
        return True

    async def _fetch(self, bundle: SentBundle) -> None:
        assert bundle.future is not None
        try:
            kept = await self._line.fetch(bundle.future)
        except Exception as error:  # noqa: BLE001 - its worker may be lost in this moment
            self.erred(bundle.key, error)
            return
        values = kept or {}
        self._sizing.received(len(values), sum(map(sys.getsizeof, values.values())))
        for position in bundle.kept:
            if position in values:
                value, raised = await asyncio.to_thread(loaded, KEPT, values[position])
                if position in bundle.open:  # it may have been cancelled in the meantime
                    bundle.open.remove(position)
                    bundle.pending.settle([bundle.numbers[position]], [value], [raised])
        bundle.kept.clear()
        self._release(bundle.key)

    def erred(self, key: str, error: BaseException) -> None:
        """Handle a bundle whose Dask task has failed or whose worker was lost."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if isinstance(error, KilledWorker):
            begun, call_s = key not in self._unbegun, self._sizing.mean_s or 0.0
            again, given_up = judge_loss(bundle, error, call_s, begun=begun)
            logger.debug(
                "bundle %s was lost with worker %s: %d of its tasks are queued again",
                key, error.last_worker, len(again),
            )  # fmt: skip
            if again and again[0] < min(given_up, default=len(bundle.numbers)):
                bundle.note_lost(again[:1])  # the one that was running, if any was
            self._wait_again(bundle, again)
            if given_up:
                bundle.open = set(given_up)
                self._line.call_soon(self._give_up, bundle, given_up)
                return
        else:
            logger.debug("bundle %s has failed: %r", key, error)
            bundle.fail(bundle.left(), error)
            # With arguments, the refusal may be that of a task whose result is one of them.
            if isinstance(error, NoWorkersError) and not bundle.references:
                self._sizing.refused()
                # With one refusal after the other, a long backlog would take hours.
                self._fail_waiting(error)
        bundle.open.clear()
        self._release(key)

    async def _give_up(self, bundle: SentBundle, errors: Mapping[int, KilledWorker]) -> None:
        """Fail tasks that have lost too many workers, and report the reasons."""
        explained = {p: await self._line.with_reasons(e, bundle.key) for p, e in errors.items()}
        errors = {p: error for p, error in explained.items() if p in bundle.left()}
        losses = described_losses(bundle, errors)
        self._line.tell_given_up(bundle.key, losses)
        for position, _, _, arguments in losses:
            error = errors[position]
            note_call(error, str(error.task), arguments, None)
            bundle.fail([position], error)
        bundle.open.clear()
        self._release(bundle.key)

    def lost(self, key: str) -> None:
        """Run tasks again if their results or uploaded arguments were on a lost worker."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if bundle.kept or any(isinstance(each, Reference) for each in bundle.references):
            self._release(key)

    # Cancelling ---------------------------------------------------------------------------------

    def cancel(self, future: CallFuture) -> None:
        """Cancel a task that was sent, even if it is running. Do nothing for another task."""
        # A program may cancel all its tasks one by one: no other bundle is searched.
        bundle = self._bundles.get(future.bundle or "")
        if bundle is not None:
            self._cancel(bundle, bundle.position_of(future))

    def _cancel(self, bundle: SentBundle, position: int) -> None:
        logger.debug("task %d of bundle %s is cancelled", position, bundle.key)
        bundle.open.discard(position)
        self._line.interrupt(bundle.key, position)
        if not bundle.open:  # no matter whether the bundle runs or waits at its worker
            self._release(bundle.key)

    def withdraw_calls_of(self, pending: PendingCalls) -> None:
        """Withdraw the unstarted bundles of cancelled tasks."""
        for bundle in self._unbegun.values():
            if bundle.pending is pending:
                logger.debug("bundle %s is recalled, because its tasks are cancelled", bundle.key)
                self._line.interrupt(bundle.key, EVERY)

    def cancel_all(self) -> None:
        """Cancel every task that was sent and has not finished."""
        for bundle in list(self._bundles.values()):
            for position in sorted(bundle.open):
                number = bundle.numbers[position]
                if isinstance(number, CallFuture):
                    number.cancel()
                else:
                    self._cancel(bundle, position)

    def close(self, error: BaseException) -> None:
        """Fail every task that was sent and has not finished."""
        for bundle in list(self._bundles.values()):
            bundle.fail(list(bundle.open), error)
        self._bundles.clear()
        self._unbegun.clear()

    # Ending -------------------------------------------------------------------------------------

    def _wait_again(self, bundle: SentBundle, positions: Sequence[int]) -> None:
        self._put_back(bundle.pending, [bundle.numbers[position] for position in positions])

    def _release(self, key: str) -> None:
        """Release the Dask task of a bundle, and queue its unfinished tasks again."""
        bundle = self._bundles.pop(key, None)
        if bundle is None:
            return
        self._unbegun.pop(key, None)
        if left := bundle.left():  # cancelled with its bundle, or without a message
            logger.debug("bundle %s has finished, %d of its tasks are queued again", key, len(left))
            bundle.note_lost([p for p in left if p in bundle.kept] or left[:1])
            self._wait_again(bundle, left)
        self._line.forget_bundle(key)
        if bundle.future is not None:
            bundle.future.release()
        self._dispatch()


# Losses -------------------------------------------------------------------------------------------

#: Number of lost workers after which a task of an executor is given up. Dask allows one more.
LOSSES = 3
#: Largest number of tasks of one lost bundle that are suspected.
MOST_SUSPECTS = 256


def judge_loss(
    bundle: SentBundle, error: KilledWorker, call_s: float, *, begun: bool
) -> tuple[list[int], dict[int, KilledWorker]]:
    """Return the positions of tasks to run again, and the errors of those to give up.
    A task is given up after ``LOSSES`` lost workers, or ``MOST_OUT_OF_MEMORY`` if memory ran out.
    ``call_s`` is the mean duration of the tasks in seconds.
    """
    left = bundle.left()
    if bundle.suspected and not begun:
        return left, {}
    # The tasks that were running, or that have finished since the last message.
    unsure = 1 if bundle.suspected else min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
    allowed = MOST_OUT_OF_MEMORY if isinstance(error, OutOfMemory) else LOSSES
    given_up: dict[int, KilledWorker] = {}
    for position in left[:unsure]:
        number = bundle.numbers[position]
        if bundle.pending.lost(number) >= allowed:
            named = getattr(bundle.pending.function(number), "__qualname__", bundle.key)
            given_up[position] = (
                error.of_call(named)
                if isinstance(error, OutOfMemory)
                else KilledWorker(named, error.last_worker, LOSSES - 1)
            )
    return [position for position in left if position not in given_up], given_up


def described_losses(
    bundle: SentBundle, errors: Mapping[int, KilledWorker]
) -> list[tuple[int, str, str, str | None]]:
    """Return position, error class, message and arguments of the tasks that are given up."""
    told = []
    for position, error in errors.items():
        arguments = None
        if settings.records_arguments():
            _, (_, args, kwargs) = bundle.pending.calls([bundle.numbers[position]], lambda _: 0)
            if args:
                arguments = shown_arguments(args[0], (kwargs or [None])[0] or {})
        told.append((position, type(error).__name__, str(error), arguments))
    return told


# Outcomes -----------------------------------------------------------------------------------------


def loaded(kind: int, value: Any) -> tuple[Any, BaseException | None]:
    """Return the result and the error of a task. One of them is None.
    ``kind`` (see :mod:`scalable.protocol.operations`) determines the form of ``value``.
    """
    if kind == ERROR:
        return None, with_package(load_error(value))
    if kind in (PICKLED, KEPT):
        try:
            return value.load() if kind == KEPT else load(value), None
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            return None, error
        except BaseException as ended:  # noqa: BLE001 - it would end the event loop
            return None, not_loaded("the result", ended)
    return value, None


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

    def began(self, bundle: SentBundle) -> None:
        """Record the sending time of a bundle that has started."""
        self._latest_begun = max(self._latest_begun, bundle.heard_at)

    def wanted(
        self,
        waiting: Collection[SentBundle],
        begun: int,
        slots: int,
        now: float,
        call_s: float = 0.0,
    ) -> list[SentBundle]:
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
        latest_first: Iterable[SentBundle] = reversed(waiting)  # type: ignore[call-overload]
        return list(islice((b for b in latest_first if not b.withdrawn), free))

    @property
    def looks_again(self) -> bool:
        """True if a slot is free while a bundle waits."""
        return self._free_since is not None


# Bundle sizes -------------------------------------------------------------------------------------

#: Desired duration of a bundle in seconds: long compared with the cost of sending one, and short
#: compared with what a user notices.
BUNDLE_S = 0.1
#: Seconds of CPU time that client and scheduler spend on a bundle, however small it is: 7 to 8 ms
#: together if they share a process and a slow machine, partly hidden by a running bundle.
SENDING_S = 0.005
#: Largest number of tasks in a bundle.
LARGEST_BUNDLE = 8192
#: Largest number of bytes of a bundle, which is one message. Dask warns of graphs of 10 MB.
LARGEST_BYTES = 8_000_000
#: Number of unfinished bundles for each slot: while one bundle runs, the next one is already at the
#: worker.
AHEAD = 2
#: Number of bundles that are in flight at first: tasks may be short, and are better sent together
#: then. The more of them have started without an outcome, the longer the tasks are.
FIRST = 32
#: Smallest number of bundles into which a backlog is divided: its tasks may be longer than earlier
#: ones, and a bundle of such tasks keeps them from other slots until it gives them back.
SHARES = 4
#: Seconds after which a turn of the event loop stops sending bundles, so that the loop continues.
TURN_S = 0.01
#: Largest number of tasks of an iterator that wait in the client, and largest number of bytes of
#: their arguments or results. Each slot has a task in any case.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 64_000_000
#: Number of tasks of an iterator that wait in any case while they are refused: one after the other,
#: as on a pool that is given up, each would take a second. Seconds for which the waiting tasks keep
#: all slots busy in any case, and number of tasks until the first one has finished.
USUAL_WAITING, USUAL_S, UNKNOWN_WAITING = 1024, 10.0, 64


class BundleSizing:
    """Measured duration and size of tasks, used to choose the number of tasks in a bundle."""

    def __init__(self) -> None:
        #: Mean duration of the latest tasks in seconds, or None before the first one has finished.
        self.mean_s: float | None = None
        self._bytes_per_call = self._bytes_per_result = 0.0
        self._is_refused = False

    def sent(self, calls: int, nbytes: int) -> None:
        """Record the number of tasks and the size in bytes of a bundle that is sent."""
        self._bytes_per_call = max(nbytes / calls, 0.5 * self._bytes_per_call)

    def received(self, calls: int, nbytes: int) -> None:
        """Record the number of tasks with results, and the size of these results in bytes."""
        if calls:
            self._bytes_per_result = max(nbytes / calls, 0.5 * self._bytes_per_result)

    def observe(self, calls: int, seconds: float) -> None:
        """Record the number and the total duration of tasks that have finished."""
        if calls:
            self._is_refused = False
            latest = seconds / calls
            self.mean_s = latest if self.mean_s is None else 0.25 * self.mean_s + 0.75 * latest

    def refused(self) -> None:
        """Record that tasks failed without running because of a lack of workers."""
        self._is_refused = True

    def at_least(self, seconds: float) -> None:
        """Raise the mean duration to the time for which a task has already been running."""
        self.mean_s = max(self.mean_s or 0.0, seconds)

    def size(self, backlog: int, slots: int) -> int:
        """Return the number of tasks in the next bundle."""
        if self.mean_s is None:
            return 1
        # A share of the backlog for each slot keeps all of them busy. If tasks are short and slots
        # are many, such a bundle takes less time to run than to send. With W seconds of waiting
        # tasks in k bundles, the last task finishes after about k SENDING_S + W / k seconds, which
        # is least if each bundle takes sqrt(W SENDING_S) seconds. The last tasks go in one bundle
        # if it takes less time than sending another one.
        mean_s = max(self.mean_s, 1e-7)
        quick = int(BUNDLE_S / mean_s)
        light = int(LARGEST_BYTES / max(self._bytes_per_call, 1.0))
        worthwhile = int(math.sqrt(backlog * SENDING_S / mean_s))
        share = max(backlog // (2 * slots), min(worthwhile, backlog // SHARES))
        least = min(backlog, int(SENDING_S / mean_s))
        return max(1, min(quick, light, max(share, least), LARGEST_BUNDLE))

    def _usual(self, slots: int) -> int:
        if self._is_refused:
            return USUAL_WAITING
        if self.mean_s is None:
            return UNKNOWN_WAITING
        return int(min(USUAL_WAITING, USUAL_S * slots / max(self.mean_s, 1e-7)))

    def lookahead(self, slots: int) -> int:
        """Return how many tasks of an iterator should wait, so that no slot runs idle."""
        busy = 2 * AHEAD * slots * self.size(LARGEST_BUNDLE * 2 * slots, slots)
        if self._bytes_per_call:  # the size of the tasks is known
            busy = max(busy, self._usual(slots))
        heaviest = max(self._bytes_per_call, self._bytes_per_result, 1.0)
        return max(slots, min(busy, MOST_WAITING, int(MOST_WAITING_BYTES / heaviest)))
