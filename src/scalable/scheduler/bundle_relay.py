"""Scheduler plug-in that passes messages between clients and the workers of their bundles.

A bundle is a batch of calls that a client sends as one Dask task.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from scalable.protocol.bundles import EVERY
from scalable.protocol.dask_seams import bundle_tasks
from scalable.protocol.dask_seams.bundle_tasks import forget_when_released, release_for
from scalable.protocol.dask_seams.scheduler import (
    LostWorker,
    fail_at_first_loss,
    never_compute_again,
    never_steal,
    offer_on_streams,
    seams,
    send_to_client,
    send_to_worker,
)
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    BUNDLES,
    GIVEN_UP,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    RETURNED,
    SLOTS,
    TIMED_OUT,
)
from scalable.scheduler.ledger import Call, EndedCall, Ledger, Listener
from scalable.scheduler.lost_bundles import LostBundles
from scalable.scheduler.upload_places import upload_places

logger = logging.getLogger("scalable.scheduler")

#: Seconds for which changes of the numbers of slots are collected before clients get them.
TELL_AFTER_S = 0.02
#: Seconds between two looks for changes that Dask does not report: a worker that has connected
#: begins to run, is paused, or is drained.
LOOK_S = 0.5


def _is_true(record: logging.LogRecord) -> bool:
    """Return False for the log record of a failed bundle, whose client sends the calls again."""
    given = record.args if isinstance(record.args, tuple) else ()
    about_bundle = bool(given) and "-bundle-" in str(given[0])
    return not (about_bundle and "marked as failed because" in str(record.msg))


logging.getLogger("distributed.scheduler").addFilter(_is_true)


class BundleRelay(SchedulerPlugin, Listener):
    """Passes messages about bundles, and sends clients the number of slots of each tag.

    A slot is room for one call on a worker. Clients send the calls of a lost bundle again, so Dask
    must neither steal nor repeat a bundle.
    """

    name = BUNDLES
    idempotent = True

    def __init__(self) -> None:
        self._followers: set[str] = set()
        self._telling = self._looking = False
        self._told: dict[str, int] | None = None
        self._lost: LostBundles | None = None
        self._backlogs: dict[tuple[str, str], tuple[str, str, int]] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Install the relay in a scheduler of a foreign class; Dask calls this for its plug-ins."""
        self.install(scheduler)

    def install(self, scheduler: Scheduler) -> None:
        """Register handlers for messages of clients and workers, and listen to the ledger."""
        seams.check()
        bundle_tasks.seams.check()
        self._scheduler = scheduler
        if self._lost is None:
            self._lost = LostBundles(scheduler)
            Ledger.of(scheduler).listen(self._lost)  # first: it says which calls begin again
            offer_on_streams(scheduler, GIVEN_UP, self._lost.give_up)
        Ledger.of(scheduler).listen(self)
        self.restart(scheduler)
        for operation in (BEGUN, OUTCOMES, TIMED_OUT, PRINTED):
            offer_on_streams(scheduler, operation, self._forwarder(operation))
        self._forward_returned = self._forwarder(RETURNED)
        offer_on_streams(scheduler, RETURNED, self.returned)
        offer_on_streams(scheduler, INTERRUPT, self.interrupt)
        offer_on_streams(scheduler, BACKLOG, self.take_backlog)
        offer(
            scheduler,
            {
                Handler.BUNDLE_BEGUN: self.begun,
                Handler.FOLLOW_SLOTS: self.follow,
                Handler.UPLOAD_PLACES: self.upload_places,
            },
        )

    def restart(self, scheduler: Scheduler) -> None:
        """Set the metadata by which clients find the relay; a restart drops the metadata."""
        scheduler.set_metadata(keys=[self.name], value=True)

    def _forwarder(self, operation: str) -> Any:
        def forward(client: str, worker: str, **message: Any) -> None:
            del worker
            send_to_client(self._scheduler, client, {"op": operation, **message})

        return forward

    def returned(self, key: str, numbers: Any, **message: Any) -> None:
        """Forward that a worker gives back calls; a running bundle has fewer calls from now on."""
        task = self._scheduler.tasks.get(key)
        bundle = None if task is None else (task.annotations or {}).get(BUNDLE_ANNOTATION)
        if bundle is not None and not isinstance(numbers, int):
            bundle["calls"] -= len(numbers)
        self._forward_returned(key=key, numbers=numbers, **message)

    def take_backlog(self, executor: str, tag: str, task: str, slots: int, client: str) -> None:
        """Store how many slots are needed by the calls that wait in one executor of a client."""
        if slots and client in self._scheduler.clients:
            self._backlogs[client, executor] = (tag, task, slots)
        else:
            self._backlogs.pop((client, executor), None)

    def backlog(self, tag: str) -> dict[str, int]:
        """Return task name -> number of slots needed by calls of a tag that wait in clients."""
        waiting: Counter[str] = Counter()
        for of_tag, task, calls in self._backlogs.values():
            if of_tag == tag:
                waiting[task] += calls
        return waiting

    def begun(self, key: str, client: str) -> None:
        """Tell a client that a worker is about to start one of its bundles."""
        send_to_client(self._scheduler, client, {"op": BEGUN, "key": key})

    def interrupt(self, key: str, number: int | None, client: str) -> None:
        """Pass a client's request to end a call to the call's worker.

        A bundle that no worker has goes back to its client, which sends the calls that were not
        cancelled again. Otherwise a cancelled call would begin once a worker takes the bundle.
        Ignored if another client waits for the task too, or if the task is unknown.
        """
        task = self._scheduler.tasks.get(key)
        if task is None or any(other.client_key != client for other in task.who_wants or ()):
            logger.debug("call %s of %s is not interrupted: unknown or shared", key, client)
            return
        logger.debug("client %s interrupts call %s of task %s", client, number, key)
        if task.processing_on is not None:
            message = {"op": INTERRUPT, "key": key, "number": number, "client": client}
            send_to_worker(self._scheduler, task.processing_on.address, message)
        elif number is not None and task.state in ("no-worker", "queued", "waiting"):
            logger.debug("bundle %s is given back: no worker has it", key)
            message = {"op": RETURNED, "key": key, "numbers": EVERY}
            send_to_client(self._scheduler, client, message)
            # Now, and not when the client has heard: a worker may connect before, and begin it.
            release_for(self._scheduler, task, client)

    def follow(self, client: str) -> dict[str, int]:
        """Return tag -> number of slots, and send the client each change from now on."""
        self._followers.add(client)
        self._told = None
        if not self._looking:
            self._looking = True
            self._scheduler.loop.call_later(LOOK_S, self._look)
        return self._slots()

    def upload_places(self, tag: str, nbytes: int) -> list[str]:
        """Return the addresses of workers that may get an argument of so many bytes for a tag."""
        return upload_places(self._scheduler, tag, nbytes)

    def _look(self) -> None:
        """Send the numbers of slots if they have changed, again and again while clients follow."""
        self._looking = bool(self._followers)
        if self._looking:
            self._send_slots()
            self._scheduler.loop.call_later(LOOK_S, self._look)

    def _slots(self) -> dict[str, int]:
        """Return tag -> number of slots of the running workers; ``""`` -> number of threads."""
        slots: Counter[str] = Counter()
        for worker in self._scheduler.running:
            slots[""] += worker.nthreads
            for tag, amount in worker.resources.items():
                slots[tag] += int(amount)
        return dict(slots)

    def _tell_soon(self) -> None:
        """Send the numbers of slots soon, once for all workers that come or go until then."""
        if self._followers and not self._telling:
            self._telling = True
            self._scheduler.loop.call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._send_slots()

    def _send_slots(self) -> None:
        slots = self._slots()
        if slots == self._told:
            return
        self._told = slots
        for client in list(self._followers):
            send_to_client(self._scheduler, client, {"op": SLOTS, "slots": slots})

    def submitted(self, calls: list[Call]) -> None:
        """Make Dask neither repeat nor steal the bundles among these calls.

        The client of a lost bundle knows which of its calls have ended, and sends only the others
        again. A client may also take back calls that have not begun. These calls must not begin on
        another worker.
        """
        for call in calls:
            if call.bundle is not None:
                fail_at_first_loss(self._scheduler, call.task)
                never_steal(call.task)

    def ended(self, end: EndedCall) -> None:
        """Make Dask not repeat a bundle if its result is lost with its worker."""
        if end.succeeded and end.call.bundle is not None:
            never_compute_again(end.call.task)

    def worker_lost(self, lost: LostWorker) -> None:
        """Give the bundles of a worker that leaves as planned back to their clients.

        Dask would run them from their start on another worker, with the calls that have ended or
        were cancelled. The bundles of a worker that is lost have failed already.
        """
        for key in lost.running:
            task = self._scheduler.tasks.get(key)
            if task is None or task.state != "processing":
                continue
            if BUNDLE_ANNOTATION in (task.annotations or {}):
                logger.debug("bundle %s is given back: worker %s leaves", key, lost.address)
                for client in task.who_wants or ():
                    message = {"op": RETURNED, "key": key, "numbers": EVERY}
                    send_to_client(self._scheduler, client.client_key, message)
                forget_when_released(task)

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        """Send clients the new numbers of slots, after a worker has connected."""
        self._tell_soon()

    async def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Send clients the new numbers of slots, after a worker has left."""
        self._tell_soon()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002
        """Drop the backlogs of a client that has disconnected, and send it no more changes."""
        self._followers.discard(client)
        for key in [key for key in self._backlogs if key[0] == client]:
            del self._backlogs[key]
