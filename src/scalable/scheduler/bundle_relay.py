"""Relay between clients and the workers of their bundles, beside the scheduler."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from scalable.protocol.dask_seams.scheduler import (
    fail_at_first_loss,
    never_compute_again,
    never_steal,
    offer_on_streams,
    seams,
    send_to_client,
    send_to_worker,
)
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    BUNDLES,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    RETURNED,
    SLOTS,
    TIMED_OUT,
)
from scalable.scheduler.ledger import Call, EndedCall, Ledger, Listener

logger = logging.getLogger("scalable.scheduler")

#: Seconds within which changes of the slots are told to clients as one.
TELL_AFTER_S = 0.02


def _is_true(record: logging.LogRecord) -> bool:
    """Return False for a record of a failed bundle: its client sends the calls again."""
    given = record.args if isinstance(record.args, tuple) else ()
    about_bundle = bool(given) and "-bundle-" in str(given[0])
    return not (about_bundle and "marked as failed because" in str(record.msg))


logging.getLogger("distributed.scheduler").addFilter(_is_true)


class BundleRelay(SchedulerPlugin, Listener):
    """Messages between clients and the workers of their bundles, and the slots of each tag.

    Calls of a bundle are sent again by their client, so Dask neither steals nor repeats a bundle.
    """

    name = BUNDLES
    idempotent = True

    def __init__(self) -> None:
        self._followers: set[str] = set()
        self._telling = False
        self._backlogs: dict[tuple[str, str], tuple[str, str, int]] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Start with a scheduler that was not made with a relay."""
        self.install(scheduler)

    def install(self, scheduler: Scheduler) -> None:
        """Offer the operations for clients and workers, and listen to the scheduler's ledger."""
        seams.check()
        self._scheduler = scheduler
        Ledger.of(scheduler).listen(self)
        self.restart(scheduler)
        for operation in (BEGUN, OUTCOMES, RETURNED, TIMED_OUT, PRINTED):
            offer_on_streams(scheduler, operation, self._forwarder(operation))
        offer_on_streams(scheduler, INTERRUPT, self.interrupt)
        offer_on_streams(scheduler, BACKLOG, self.take_backlog)
        offer(scheduler, {Handler.BUNDLE_BEGUN: self.begun, Handler.FOLLOW_SLOTS: self.follow})

    def restart(self, scheduler: Scheduler) -> None:
        """Announce the relay: a scheduler that restarts drops its metadata."""
        scheduler.set_metadata(keys=[self.name], value=True)

    def _forwarder(self, operation: str) -> Any:
        def forward(client: str, worker: str, **message: Any) -> None:
            del worker
            send_to_client(self._scheduler, client, {"op": operation, **message})

        return forward

    def take_backlog(self, executor: str, tag: str, task: str, slots: int, client: str) -> None:
        """Store the number of slots that the waiting calls of a client's executor take."""
        if slots and client in self._scheduler.clients:
            self._backlogs[client, executor] = (tag, task, slots)
        else:
            self._backlogs.pop((client, executor), None)

    def backlog(self, tag: str) -> dict[str, int]:
        """Return the slots that the calls waiting in clients take, by task name."""
        waiting: Counter[str] = Counter()
        for of_tag, task, calls in self._backlogs.values():
            if of_tag == tag:
                waiting[task] += calls
        return waiting

    def begun(self, key: str, client: str) -> None:
        """Tell a client that a worker is about to start its bundle."""
        send_to_client(self._scheduler, client, {"op": BEGUN, "key": key})

    def interrupt(self, key: str, number: int | None, client: str) -> None:
        """Pass a client's wish to end a call to its worker, unless another client waits for it."""
        task = self._scheduler.tasks.get(key)
        if task is None or any(other.client_key != client for other in task.who_wants or ()):
            logger.debug("call %s of %s is not interrupted: unknown or shared", key, client)
            return
        logger.debug("client %s interrupts call %s of task %s", client, number, key)
        if task.processing_on is not None:
            message = {"op": INTERRUPT, "key": key, "number": number, "client": client}
            send_to_worker(self._scheduler, task.processing_on.address, message)

    def follow(self, client: str) -> dict[str, int]:
        """Return the slots of each tag, and tell the client each change from now on."""
        self._followers.add(client)
        return self._slots()

    def _slots(self) -> dict[str, int]:
        """Return the slots of the running workers by tag; the tag of untagged slots is empty."""
        slots: Counter[str] = Counter()
        for worker in self._scheduler.running:
            slots[""] += worker.nthreads
            for tag, amount in worker.resources.items():
                slots[tag] += int(amount)
        return dict(slots)

    def _tell_soon(self) -> None:
        """Tell the slots once for all workers that come or go within a moment."""
        if self._followers and not self._telling:
            self._telling = True
            self._scheduler.loop.call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        self._telling = False
        slots = self._slots()
        for client in list(self._followers):
            send_to_client(self._scheduler, client, {"op": SLOTS, "slots": slots})

    def submitted(self, calls: list[Call]) -> None:
        """Have Dask neither repeat bundles whole nor steal them.

        The client of a lost bundle knows which calls had ended, and withdraws waiting calls while
        a slot is free: withdrawn calls must not begin in another worker.
        """
        for call in calls:
            if call.bundle is not None:
                fail_at_first_loss(self._scheduler, call.task)
                never_steal(call.task)

    def ended(self, end: EndedCall) -> None:
        """Have Dask not repeat a bundle whose result is lost with its worker."""
        if end.succeeded and end.call.bundle is not None:
            never_compute_again(end.call.task)

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        """Tell clients the slots of a worker that connected."""
        self._tell_soon()

    async def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Tell clients that the slots of a worker are gone."""
        self._tell_soon()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002
        """Forget the backlogs of a client that is gone, and tell it nothing more."""
        self._followers.discard(client)
        for key in [key for key in self._backlogs if key[0] == client]:
            del self._backlogs[key]
