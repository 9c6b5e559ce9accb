"""Beside the scheduler: passes the answers of bundles to their clients, and knows of slots."""

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
from scalable.protocol.measured import BUNDLE_ANNOTATION
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

TELL_AFTER_S = 0.02


def _is_true(record: logging.LogRecord) -> bool:
    """Whether a record does not say that a bundle has failed: its client sends it again."""
    given = record.args if isinstance(record.args, tuple) else ()
    about_bundle = bool(given) and "-bundle-" in str(given[0])
    return not (about_bundle and "marked as failed because" in str(record.msg))


logging.getLogger("distributed.scheduler").addFilter(_is_true)


class BundleRelay(SchedulerPlugin):
    """Lets clients follow their bundles, and tells them how many slots each tag has."""

    name = BUNDLES
    idempotent = True

    def __init__(self) -> None:
        self._followers: set[str] = set()
        self._telling = False
        self._backlogs: dict[tuple[str, str], tuple[str, str, int]] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Begin, with the scheduler."""
        self.install(scheduler)

    def install(self, scheduler: Scheduler) -> None:
        """Offer what clients and workers ask for."""
        seams.check()
        self._scheduler = scheduler
        self.restart(scheduler)
        for operation in (BEGUN, OUTCOMES, RETURNED, TIMED_OUT, PRINTED):
            offer_on_streams(scheduler, operation, self._forwarder(operation))
        offer_on_streams(scheduler, INTERRUPT, self.interrupt)
        offer_on_streams(scheduler, BACKLOG, self.take_backlog)
        offer(scheduler, {Handler.BUNDLE_BEGUN: self.begun, Handler.FOLLOW_SLOTS: self.follow})

    def restart(self, scheduler: Scheduler) -> None:
        """Say that this is here: a scheduler that restarts forgets what it was told."""
        scheduler.set_metadata(keys=[self.name], value=True)

    def _forwarder(self, operation: str) -> Any:
        def forward(client: str, worker: str, **message: Any) -> None:
            del worker
            send_to_client(self._scheduler, client, {"op": operation, **message})

        return forward

    def take_backlog(self, executor: str, tag: str, task: str, slots: int, client: str) -> None:
        """Store how many slots the calls take that wait in an executor of a client."""
        if slots and client in self._scheduler.clients:
            self._backlogs[client, executor] = (tag, task, slots)
        else:
            self._backlogs.pop((client, executor), None)

    def backlog(self, tag: str) -> dict[str, int]:
        """Task name -> slots that calls take which wait in clients."""
        waiting: Counter[str] = Counter()
        for of_tag, task, calls in self._backlogs.values():
            if of_tag == tag:
                waiting[task] += calls
        return waiting

    def begun(self, key: str, client: str) -> None:
        """Pass on that a bundle begins, before it does."""
        send_to_client(self._scheduler, client, {"op": BEGUN, "key": key})

    def interrupt(self, key: str, number: int | None, client: str) -> None:
        """Pass on that a client wants a call ended, unless another one waits for it too."""
        task = self._scheduler.tasks.get(key)
        if task is None or any(other.client_key != client for other in task.who_wants or ()):
            return
        if task.processing_on is not None:
            message = {"op": INTERRUPT, "key": key, "number": number, "client": client}
            send_to_worker(self._scheduler, task.processing_on.address, message)

    def follow(self, client: str) -> dict[str, int]:
        """Tell a client from now on how many slots each tag has; what they are now."""
        self._followers.add(client)
        return self._slots()

    def _slots(self) -> dict[str, int]:
        """Tag -> slots of the workers that take calls; untagged ones under no tag."""
        slots: Counter[str] = Counter()
        for worker in self._scheduler.running:
            slots[""] += worker.nthreads
            for tag, amount in worker.resources.items():
                slots[tag] += int(amount)
        return dict(slots)

    def _tell_soon(self) -> None:
        """Once for all the workers that come or go in a moment."""
        if self._followers and not self._telling:
            self._telling = True
            self._scheduler.loop.call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        self._telling = False
        slots = self._slots()
        for client in list(self._followers):
            send_to_client(self._scheduler, client, {"op": SLOTS, "slots": slots})

    def update_graph(self, scheduler: Scheduler, *, tasks: list[Any], **_: Any) -> None:
        """A bundle whose worker is lost is not run again whole: its client knows what had ended."""
        for key in tasks:
            task = scheduler.tasks.get(key)
            if task is not None and BUNDLE_ANNOTATION in (task.annotations or ()):
                fail_at_first_loss(scheduler, task)
                # Nor is it stolen: its client takes back what waits while a slot is free, and what
                # was taken back must not begin elsewhere.
                never_steal(task)

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """What a bundle holds may be lost with its worker: it is not run again for that either."""
        if finish == "memory" and start == "processing":
            task = self._scheduler.tasks[key]
            if BUNDLE_ANNOTATION in (task.annotations or ()):
                never_compute_again(task)

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        """More slots."""
        self._tell_soon()

    async def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Fewer slots."""
        self._tell_soon()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002
        """A client that is gone follows nothing."""
        self._followers.discard(client)
        for key in [key for key in self._backlogs if key[0] == client]:
            del self._backlogs[key]
