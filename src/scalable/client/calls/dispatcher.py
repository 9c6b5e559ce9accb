"""Keeps the backlog of a pool in the client, and sends it off in bundles."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dask import annotate  # type: ignore[attr-defined]
from dask.utils import funcname
from distributed import Client, Future
from distributed.scheduler import KilledWorker

from scalable.client.calls.backlog import Outcome, PendingCalls
from scalable.client.calls.bundle_size import AHEAD, BundleSizing
from scalable.client.calls.futures import CallFuture
from scalable.client.calls.losses import SentBundle, judge_loss
from scalable.client.calls.withdrawals import FREE_S, Withdrawals
from scalable.errors import ClusterError
from scalable.protocol.bundles import (
    ERROR,
    EVERY,
    INTERRUPT_GRACE_S,
    KEPT,
    PICKLED,
    PLAIN,
    PROCESS,
    too_long,
)
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.protocol.messages import dump_calls, dump_function, load, load_error
from scalable.worker.bundles import run_bundle

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient

logger = logging.getLogger("scalable.client")

#: The scheduler is told of the backlog at most so often.
TELL_BACKLOG_S = 0.5
#: The functions of so many calls are looked at to name a bundle.
NAMED = 8


@dataclass(frozen=True)
class Options:
    """What a pool of calls was asked for.

    Attributes
    ----------
    timeout_s
        Longest running time of a call in seconds, or None.
    stream_output
        Whether what calls print is printed here.
    record_calls
        Whether the records get a row for each call.
    """

    timeout_s: float | None = None
    stream_output: bool = False
    record_calls: bool = False


class Dispatcher:
    """Sends calls to the slots of one tag. Everything but :meth:`wake` runs in the client's loop.

    Parameters
    ----------
    client
        Whose connection is used.
    name
        What bundles are called.
    resources
        What one call takes of a worker.
    tag
        The pool, or "" for any worker.
    slots_per_call
        Slots of the tag that one call takes.
    task
        The task's name that was given, or None.
    options
        What else was asked for.
    """

    def __init__(
        self,
        client: ScalableClient,
        name: str,
        tag: str,
        slots_per_call: int,
        resources: dict[str, float] | None,
        task: str | None,
        options: Options,
    ) -> None:
        self.client, self.name, self.tag = client, name, tag
        self.backlog: deque[PendingCalls] = deque()
        self.pace = BundleSizing()
        self.closed = False
        self._slots_per_call = slots_per_call
        self._resources, self._task, self._options = resources, task, options
        self._bundles: dict[str, SentBundle] = {}
        #: All is known of their calls, and their tasks have not ended yet.
        self._ending: dict[str, SentBundle] = {}
        self._awake = False
        self._id, self._task_name = uuid.uuid4().hex, task or name
        self._told, self._telling = 0, False
        self._recalls, self._looking = Withdrawals(), False

    # For any thread -------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to send."""
        if self.closed:
            self.close()  # what was given in the same moment
        elif not self._awake:
            self._awake = True
            self.client.in_loop(self._dispatch)

    def offer(self, pending: PendingCalls) -> None:
        """More calls wait."""
        self.backlog.append(pending)
        self.wake()

    # In the client's loop -------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs, and the records have heard of the end of what ran."""
        return not self._bundles and not self._ending and not self._backlog()

    def _dispatch(self) -> None:
        # First: whatever is added from here on wakes us again.
        self._awake = False
        self._fill()
        self._recall()
        if not self._telling and self._backlog() != self._told:
            self._telling = True
            self.client.in_loop_after(TELL_BACKLOG_S, self._tell_backlog)

    def _backlog(self) -> int:
        return 0 if self.closed else sum(map(len, list(self.backlog)))  # others add to them

    def _tell_backlog(self) -> None:
        """Tell the scheduler what waits here: pools that follow their load count it."""
        self._telling = False
        backlog = self._backlog()
        if backlog != self._told:
            self._told = backlog
            self.client.tell_backlog(
                self._id, self.tag, self._task_name, backlog * self._slots_per_call
            )

    def _fill(self) -> None:
        """Send off bundles, as many as may be on their way."""
        slots = self._slots()
        while len(self._bundles) < AHEAD * slots:
            pending = self._first()
            if pending is None:
                return
            numbers = pending.take(self.pace.size(self._backlog(), slots))
            suspects = [number for number in numbers if pending.suspects(number)]
            for number in suspects:
                self._try_to_send(pending, [number])
            if others := [n for n in numbers if not pending.suspects(n)] if suspects else numbers:
                self._try_to_send(pending, others)

    def _recall(self) -> None:
        """Take back what waits while a slot is free."""
        waiting = self._bundles.values()
        for bundle in self._recalls.wanted(list(waiting), self._slots(), time.monotonic()):
            bundle.recalled = True
            self.client.interrupt(bundle.key, EVERY)
        if self._recalls.looks_again and not self._looking:
            self._looking = True
            self.client.in_loop_after(FREE_S, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._recall()

    def _slots(self) -> int:
        return max(1, self.client.slots_of(self.tag) // self._slots_per_call)

    def _first(self) -> PendingCalls | None:
        while self.backlog:
            pending = self.backlog[0]
            if len(pending):
                return pending
            if len(self.backlog) == 1:
                return None
            self.backlog.rotate(-1) if pending.profile else self.backlog.popleft()
            if not self._backlog():
                return None
        return None

    def _try_to_send(self, pending: PendingCalls, numbers: list[Any]) -> None:
        """Send calls off; those fail that cannot be sent."""
        try:
            self._send(pending, numbers)
        except BaseException as raised:  # noqa: BLE001 - it would end the event loop
            error = ClusterError(f"the call could not be sent: {raised!r}")
            pending.settle(numbers, [(None, error)] * len(numbers))

    def _send(self, pending: PendingCalls, numbers: list[Any]) -> None:
        functions: dict[tuple[bytes, bytes], int] = {}
        known: dict[int, int] = {}

        def index(function: Callable[..., Any]) -> int:
            if (place := known.get(id(function))) is None:
                place = functions.setdefault(dump_function(function), len(functions))
                known[id(function)] = place
            return place

        sent, calls = pending.calls(numbers, index)
        if not sent:
            return
        try:
            payload, references = dump_calls(calls)
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            if len(sent) == 1:
                pending.settle(sent, [(None, error)])
            else:
                for number in sent:  # the others are not at fault
                    self._send(pending, [number])
            return
        self._submit(pending, sent, list(functions), payload, references)

    def _submit(
        self,
        pending: PendingCalls,
        numbers: list[Any],
        functions: Sequence[tuple[bytes, bytes]],
        payload: bytes,
        references: dict[Any, Future[Any]],
    ) -> None:
        self.pace.sent(len(numbers), len(payload))
        key = f"{self.name}-bundle-{uuid.uuid4()}"
        suspected = pending.suspects(numbers[0])
        opened = set(range(len(numbers)))
        bundle = SentBundle(key, pending, numbers, opened, time.monotonic(), suspected)
        header = {
            "key": key,
            "client": self.client.id,
            "functions": tuple(functions),
            "timeout_s": self._options.timeout_s,
            "profile": pending.profile,
            "confirm": suspected,
            "record": self._options.record_calls,
            "process": PROCESS if self._options.stream_output else "",
        }
        names = {self._named(pending.function(number)) for number in numbers[:NAMED]}
        self._task_name = names.pop() if len(names) == 1 else self.name
        notes: dict[str, Any] = {
            BUNDLE_ANNOTATION: {"calls": len(numbers), "rows": self._options.record_calls},
            TASK_ANNOTATION: self._task_name,
        }
        self._bundles[key] = bundle
        self.client.follow_bundle(key, self)
        with annotate(**notes):
            bundle.future = Client.submit(
                self.client, run_bundle, header, payload, references,
                key=key, pure=False, resources=self._resources,
            )  # fmt: skip

    # What is heard of bundles ---------------------------------------------------------------------

    def outcomes(self, key: str, outcomes: bytes, busy_s: float, *, over: bool) -> None:
        """Calls of a bundle have ended."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        positions, values, kinds, measured = load(outcomes)
        heard = [bundle.numbers[position] for position in positions]
        fresh = bundle.open.issuperset(positions)
        bundle.open.difference_update(positions)
        if heard:
            self.pace.observe(len(heard), busy_s)
            if measured is not None:
                self._note_measures(bundle, heard, *measured)
            if fresh and not kinds:
                bundle.pending.settle_values(heard, values)
            else:
                self._settle(bundle, positions, values, kinds)
        bundle.heard_at = time.monotonic()
        bundle.over = over
        if over and not bundle.kept:
            self._end(bundle)

    def _settle(
        self,
        bundle: SentBundle,
        positions: Iterable[int],
        values: Sequence[Any],
        kinds: Mapping[int, int],
    ) -> None:
        numbers, outcomes = [], []
        for position, value in zip(positions, values, strict=True):
            kind = kinds.get(position, PLAIN)
            if kind == KEPT:
                bundle.kept.append(position)
                bundle.open.add(position)
                continue
            numbers.append(bundle.numbers[position])
            outcomes.append(_outcome(kind, value))
        bundle.pending.settle(numbers, outcomes)

    def _note_measures(
        self,
        bundle: SentBundle,
        numbers: Sequence[Any],
        worker: str,
        transfer_s: float,
        measures: Sequence[tuple[float, float, float, int | None]],
    ) -> None:
        place = (self.tag, worker, transfer_s)
        named = [self._named(bundle.pending.function(number)) for number in numbers]
        bundle.pending.measured(
            numbers, [(n, *place, *each) for n, each in zip(named, measures, strict=True)]
        )

    def _named(self, function: Callable[..., Any]) -> str:
        try:
            return self._task or str(funcname(function))
        except Exception:  # noqa: BLE001 - the object's own code
            return type(function).__name__

    def returned(self, key: str, numbers: Sequence[int] | int) -> None:
        """A bundle takes too long, and has given back what it had not begun."""
        bundle = self._bundles.get(key)
        if bundle is None:
            return
        if isinstance(numbers, int):  # it had not begun when it was asked back
            self._release(key)
            return
        self.pace.at_least(time.monotonic() - bundle.heard_at)
        given = [position for position in numbers if position in bundle.open]
        bundle.open.difference_update(given)
        self._wait_again(bundle, given)
        self._dispatch()

    def timed_out(self, key: str, number: int) -> None:
        """A call of a bundle has run for longer than it may."""
        bundle = self._bundles.get(key)
        if bundle is None or number not in bundle.open:
            return
        bundle.open.discard(number)
        error = too_long(
            bundle.pending.function(bundle.numbers[number]), self._options.timeout_s or 0.0
        )
        bundle.pending.settle([bundle.numbers[number]], [(None, error)])
        self.client.in_loop_after(INTERRUPT_GRACE_S / 2, partial(self._let_go, key))
        if not bundle.open:
            self._end(bundle)

    def _let_go(self, key: str) -> None:
        """Release a bundle whose call does not end: with its worker replaced it would run again."""
        bundle = self._ending.get(key) or self._bundles.get(key)
        if bundle is not None and not bundle.over:
            self._release(key)

    def in_memory(self, key: str) -> None:
        """A bundle has ended; what is too large to be told can be fetched."""
        bundle = self._bundles.get(key)
        if bundle is None or not bundle.kept:
            self._release(key)
        else:
            self.client.in_loop(self._fetch, bundle)

    def _release(self, key: str) -> None:
        """Let go of a bundle's task: not before the scheduler has heard of its end."""
        bundle = self._ending.pop(key, None) or self._bundles.get(key)
        if bundle is None:
            return
        if bundle.key in self._bundles:
            self._end(bundle)
            del self._ending[key]
        self.client.forget_bundle(key)
        if bundle.future is not None:
            bundle.future.release()

    async def _fetch(self, bundle: SentBundle) -> None:
        assert bundle.future is not None
        try:
            kept = await self.client.fetched(bundle.future)
        except Exception as error:  # noqa: BLE001 - its worker may be lost in this moment
            self.erred(bundle.key, error)
            return
        values = kept or {}
        for position in bundle.kept:
            if position in values:
                bundle.open.discard(position)
                bundle.pending.settle([bundle.numbers[position]], [(values[position], None)])
        bundle.kept.clear()
        self._release(bundle.key)

    def erred(self, key: str, error: BaseException) -> None:
        """A bundle has failed as a whole, or its worker was lost."""
        bundle = self._bundles.get(key)
        if bundle is None:
            self._release(key)
            return
        if isinstance(error, KilledWorker):
            again = judge_loss(bundle, error, self.pace.mean_s or 0.0)
            self._wait_again(bundle, again)
        else:
            left = [bundle.numbers[position] for position in bundle.left()]
            failed: Outcome = (None, error)
            bundle.pending.settle(left, [failed] * len(left))
        bundle.open.clear()
        self._release(key)

    def lost(self, key: str) -> None:
        """What is too large to be told was lost with its worker: those calls are run again."""
        if key in self._bundles and self._bundles[key].kept:
            self._release(key)

    def begun(self, key: str) -> None:
        """A bundle of which that was asked begins."""
        if key in self._bundles:
            self._bundles[key].begun = True
            self._recall()

    def cancel(self, pending: PendingCalls, number: Any) -> None:
        """End a call that was sent off."""
        for bundle in self._bundles.values():
            if bundle.pending is pending and number in bundle.numbers:
                break
        else:
            return
        position = bundle.numbers.index(number)
        bundle.open.discard(position)
        self.client.interrupt(bundle.key, position)
        if not bundle.open:  # whether it runs or waits at its worker
            self._release(bundle.key)

    def cancel_all(self) -> None:
        """End every call that was sent off."""
        for bundle in list(self._bundles.values()):
            for position in sorted(bundle.open):
                number = bundle.numbers[position]
                if isinstance(number, CallFuture):
                    number.cancel()
                else:
                    self.cancel(bundle.pending, number)

    def _wait_again(self, bundle: SentBundle, positions: Sequence[int]) -> None:
        bundle.pending.put_back([bundle.numbers[position] for position in positions])
        if bundle.pending not in self.backlog:
            self.backlog.appendleft(bundle.pending)

    def _end(self, bundle: SentBundle) -> None:
        self._bundles.pop(bundle.key, None)
        self._ending[bundle.key] = bundle
        if left := bundle.left():  # cancelled with its bundle, or never heard of
            self._wait_again(bundle, left)
        self._dispatch()

    def close(self, error: BaseException | None = None) -> None:
        """Give up everything that waits or runs."""
        self.closed = True
        error = error or ClusterError("the client was closed before the call had ended")
        for bundle in list(self._bundles.values()):
            left = [bundle.numbers[p] for p in bundle.open]
            bundle.pending.settle(left, [(None, error)] * len(left))
            self._bundles.pop(bundle.key, None)
        self._ending.clear()
        for pending in list(self.backlog):
            numbers = pending.take(len(pending) or 1)
            pending.settle(numbers, [(None, error)] * len(numbers))


def _outcome(kind: int, value: Any) -> Outcome:
    if kind == ERROR:
        return None, load_error(value)
    if kind == PICKLED:
        try:
            return load(value), None
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            return None, error
        except BaseException as ended:  # noqa: BLE001 - it would end the event loop
            return None, RuntimeError(f"the result cannot be loaded: {ended!r}")
    return value, None
