"""Scheduler plugin that passes messages between clients and the workers of their bundles."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from functools import partial
from heapq import nlargest
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import WorkerState

from scalable.dask_compat.scheduler import (
    keep_to_first_worker,
    never_compute_again,
    send_to_client,
    send_to_worker,
)
from scalable.dask_compat.tasks import forget_when_released
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    BUNDLES,
    EVERY,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    RETURNED,
    SLOTS,
)
from scalable.scheduler.task_log import (
    EndedTask,
    Listener,
    LoggedTask,
    TaskLog,
)
from scalable.scheduler.worker_losses import WorkerLosses

logger = logging.getLogger("scalable.scheduler")

#: Seconds for which changes of the slot counts are collected before clients get them.
TELL_AFTER_S = 0.02
#: Seconds between two checks for changes that Dask does not report: a connected worker starts to
#: run, is paused, or is drained.
LOOK_S = 0.5


def _is_true(record: logging.LogRecord) -> bool:
    """Return False for the log record of a failed bundle, since its client resends the tasks."""
    given = record.args if isinstance(record.args, tuple) else ()
    about_bundle = bool(given) and "-bundle-" in str(given[0])
    return not (about_bundle and "marked as failed because" in str(record.msg))


logging.getLogger("distributed.scheduler").addFilter(_is_true)


class BundleRelay(SchedulerPlugin, Listener):
    """Passes messages about bundles, and sends clients the number of slots of each tag.
    Clients resend the tasks of a lost bundle, so Dask must neither steal nor repeat bundles.
    """

    name = BUNDLES
    idempotent = True

    def __init__(self) -> None:
        self._followers: set[str] = set()
        self._telling = self._looking = False
        self._told: dict[str, int] | None = None
        self._backlogs: dict[tuple[str, str], tuple[str, str, int]] = {}

    async def start(self, scheduler: Scheduler) -> None:
        """Install the relay in a third-party scheduler, as Dask does with its plugins."""
        self.install(scheduler)

    def install(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        WorkerLosses.of(scheduler)  # first: it determines which tasks start again
        TaskLog.of(scheduler).listen(self)
        self.restart(scheduler)
        for operation in (BEGUN, OUTCOMES, PRINTED):
            scheduler.stream_handlers[operation] = partial(self._forward, operation)
        scheduler.stream_handlers |= {
            RETURNED: self.returned,
            INTERRUPT: self.interrupt,
            BACKLOG: self.take_backlog,
        }
        offer(
            scheduler,
            {
                Handler.BUNDLE_BEGUN: self.begun,
                Handler.FOLLOW_SLOTS: self.follow,
                Handler.UPLOAD_PLACES: lambda tag, nbytes: upload_places(scheduler, tag, nbytes),
            },
        )

    def restart(self, scheduler: Scheduler) -> None:
        """Restore the metadata by which clients find the relay after a restart."""
        scheduler.set_metadata(keys=[self.name], value=True)

    def _forward(self, operation: str, client: str, worker: str, **message: Any) -> None:
        del worker
        send_to_client(self._scheduler, client, {"op": operation, **message})

    def returned(
        self, key: str, numbers: Any, client: str, worker: str = "", timings: Any = None
    ) -> None:
        """Forward the tasks that a worker gives back, and subtract them from the bundle's count.
        A bundle that is given back whole is released here: until the client has answered, it could
        be moved to another worker and start there. One with ``timings`` has ended but for a task
        that does not stop.
        """
        if timings is not None:
            TaskLog.of(self._scheduler).bundle_stopped(key, timings, worker)
        task = self._scheduler.tasks.get(key)
        bundle = None if task is None else (task.annotations or {}).get(BUNDLE_ANNOTATION)
        if bundle is not None and not isinstance(numbers, int):
            bundle["calls"] -= len(numbers)
        send_to_client(self._scheduler, client, {"op": RETURNED, "key": key, "numbers": numbers})
        if task is not None and isinstance(numbers, int):
            forget_when_released(task)  # it is not counted as cancelled
            # The client's later request is then harmless.
            self._scheduler.client_releases_keys(keys=[key], client=client)

    def take_backlog(self, executor: str, tag: str, task: str, slots: int, client: str) -> None:
        """Store the number of slots that the queued tasks of a client's executor need."""
        if slots and client in self._scheduler.clients:
            self._backlogs[client, executor] = (tag, task, slots)
        else:
            self._backlogs.pop((client, executor), None)

    def backlog(self, tag: str) -> dict[str, int]:
        """Return the slots needed by a tag's tasks that are queued in clients, by task name."""
        waiting: Counter[str] = Counter()
        for of_tag, task, calls in self._backlogs.values():
            if of_tag == tag:
                waiting[task] += calls
        return waiting

    def begun(self, key: str, client: str) -> None:
        """Note that a suspected task starts, before it does, and pass that on to its client."""
        if (call := TaskLog.of(self._scheduler).find(key)) is not None:
            call.suspect_began = True
        send_to_client(self._scheduler, client, {"op": BEGUN, "key": key})

    def interrupt(self, key: str, number: int | None, client: str) -> None:
        """Pass a client's request to interrupt a task to the task's worker."""
        task = self._scheduler.tasks.get(key)
        if task is None or any(other.client_key != client for other in task.who_wants or ()):
            logger.debug("task %s of %s is not interrupted: unknown or shared", key, client)
            return
        logger.debug("client %s interrupts task %s of bundle %s", client, number, key)
        if task.processing_on is not None:
            message = {"op": INTERRUPT, "key": key, "number": number, "client": client}
            send_to_worker(self._scheduler, task.processing_on.address, message)
        elif number is not None and task.state in ("no-worker", "queued", "waiting"):
            logger.debug("bundle %s is returned: no worker has it", key)
            self.returned(key, EVERY, client)

    def follow(self, client: str) -> dict[str, int]:
        """Return slot counts by tag, and send each later change to the client."""
        self._followers.add(client)
        self._told = None
        if not self._looking:
            self._looking = True
            self._scheduler.loop.call_later(LOOK_S, self._look)
        return self._slots()

    def _look(self) -> None:
        self._looking = bool(self._followers)
        if self._looking:
            self._send_slots()
            self._scheduler.loop.call_later(LOOK_S, self._look)

    def _slots(self) -> dict[str, int]:
        """Map tags to the slots of running workers, and ``""`` to the threads of these workers."""
        slots: Counter[str] = Counter()
        for worker in self._scheduler.running:
            slots[""] += worker.nthreads
            for tag, amount in worker.resources.items():
                slots[tag] += int(amount)
        return dict(slots)

    def _tell_soon(self) -> None:
        """Send the slot counts soon, in one message for all workers that join or leave by then."""
        if self._followers and not self._telling:
            self._telling = True
            self._scheduler.loop.call_later(TELL_AFTER_S, self._send_slots)

    def _send_slots(self) -> None:
        self._telling = False
        slots = self._slots()
        if slots == self._told:
            return
        self._told = slots
        for client in list(self._followers):
            send_to_client(self._scheduler, client, {"op": SLOTS, "slots": slots})

    def bundle_submitted(self, call: LoggedTask) -> None:
        """Prevent Dask from repeating or stealing a bundle."""
        keep_to_first_worker(self._scheduler, call.task)

    def bundle_ended(self, end: EndedTask) -> None:
        """Prevent Dask from repeating a bundle whose results were lost with its worker."""
        if end.succeeded:
            never_compute_again(end.call.task)

    async def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        self._tell_soon()

    async def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        self._tell_soon()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002
        """Drop the backlogs of a disconnected client, and send it no more changes."""
        self._followers.discard(client)
        for key in [key for key in self._backlogs if key[0] == client]:
            del self._backlogs[key]


# Upload places ------------------------------------------------------------------------------------

#: Number of workers that are compared, and number that are returned, in case one leaves.
COMPARED, NAMED = 20, 3
#: Share of a worker's memory limit up to which it gets uploads. Above it, Dask spills results.
ROOMY = 0.6


def upload_places(scheduler: Scheduler, tag: str, nbytes: int) -> list[str]:
    """Return addresses of workers with enough memory for an argument, or else with the most."""
    running = list(scheduler.running)
    of_pool = [worker for worker in running if tag in worker.resources] if tag else running
    found = of_pool or running
    drawn = random.sample(found, min(COMPARED, len(found)))
    roomy = [worker for worker in drawn if _free_memory(worker, ROOMY) >= nbytes]
    places = roomy[:NAMED] or nlargest(NAMED, drawn, key=_free_memory)
    return [worker.address for worker in places]


def _free_memory(worker: WorkerState, share: float = 1.0) -> float:
    """Return the free bytes up to a share of a worker's limit, or infinity without a limit."""
    used = max(worker.nbytes, worker.metrics.get("memory", 0))
    return share * worker.memory_limit - used if worker.memory_limit else math.inf
