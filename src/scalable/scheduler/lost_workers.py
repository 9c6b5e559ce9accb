"""Reasons for which workers were lost, and the end of calls that need more memory than there is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.dask_seams.nodes import fail_running_task
from scalable.protocol.dask_seams.scheduler import LostWorker
from scalable.protocol.events import Event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.lost_calls import MOST_OUT_OF_MEMORY, OutOfMemory
from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler.ledger import Call, Ledger, Listener

logger = logging.getLogger("scalable.scheduler")

#: Seconds to wait for the reason of a loss, which a manager finds out after the scheduler.
REASON_S = 15.0
#: Number of lost workers, and of tasks that have lost one, that are remembered.
REMEMBERED = 10_000
_LOST = "lost: "


class LostWorkers(Listener):
    """Knows why workers were lost, and which tasks ran on them.

    Parameters
    ----------
    scheduler
        Scheduler of the workers.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._names: dict[str, str] = {}
        self._lost_with: dict[Any, list[str]] = {}
        self._reasons: dict[str, str] = {}
        self._too_large: dict[Any, int] = {}
        self._news = asyncio.Event()
        Ledger.of(scheduler).listen(self)
        offer(
            scheduler,
            {
                Handler.OUT_OF_MEMORY: self.out_of_memory,
                Handler.REASONS_OF_LOSS: self.reasons_of_loss,
            },
        )

    # Events -------------------------------------------------------------------------------------

    def worker_added(self, worker: WorkerState) -> None:
        """Remember the name of a worker."""
        self._names[worker.address] = str(worker.name)

    def worker_lost(self, lost: LostWorker) -> None:
        """Remember which tasks ran on a worker that was lost."""
        name = self._names.pop(lost.address, None)
        if name is None or lost.expected:
            return
        for key in lost.running:
            self._lost_with.setdefault(key, []).append(name)
        _forget_oldest(self._lost_with)

    def forgotten(self, call: Call) -> None:
        """Forget a task."""
        self._lost_with.pop(call.key, None)
        self._too_large.pop(call.key, None)

    def event(self, event: Event) -> None:
        """Take the reason for a loss from a manager's event."""
        reason = event.get("reason") or ""
        if event.get("event") == "removed" and reason.startswith(_LOST):
            self._know(str(event["worker"]), reason.removeprefix(_LOST))

    def _know(self, name: str, reason: str) -> None:
        self._reasons.setdefault(name, reason)
        _forget_oldest(self._reasons)
        self._news.set()

    # Handlers -----------------------------------------------------------------------------------

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[tuple[str, str]]:
        """Return worker -> reason of its loss, once the managers know it.

        Parameters
        ----------
        key
            Key of a task that was lost with workers.
        workers
            Names of further lost workers.
        """
        names = list(dict.fromkeys([*self._lost_with.get(key, ()), *workers]))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REASON_S
        while not all(name in self._reasons for name in names) and loop.time() < deadline:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - loop.time())
            except TimeoutError:
                break
        unknown = "its manager does not know why"
        return [(name, self._reasons.get(name, unknown)) for name in names]

    def out_of_memory(self, worker: str, keys: list[Any], used: int, limit: int) -> None:
        """Fail the calls of a worker that ends for lack of memory, if they had another try.

        Calls of bundles fail at once: their client makes the other try.

        Parameters
        ----------
        worker
            Address of the worker.
        keys
            Keys of the calls that run on it.
        used, limit
            Memory that it uses, and its limit, in bytes.
        """
        state = self._scheduler.workers.get(worker)
        if state is None or not keys:
            return
        self._scheduler.log_event(LEAVING_TOPIC, worker)
        component = next(iter(state.resources), "")
        for key in keys:
            task = self._scheduler.tasks.get(key)
            if task is None or task.processing_on is not state:
                continue
            call = Call(task)
            self._too_large[key] = tries = self._too_large.get(key, 0) + 1
            error = OutOfMemory(
                call.name, state.clean(), tries - 1, used, limit, component, len(keys) - 1
            )
            self._know(str(state.name), f"it ran out of memory: {error}")
            if call.bundle is not None or tries >= MOST_OUT_OF_MEMORY:
                logger.info("%s", error)
                fail_running_task(self._scheduler, task, worker, error)


def _forget_oldest(entries: dict[Any, Any]) -> None:
    while len(entries) > REMEMBERED:
        del entries[next(iter(entries))]
