"""Reasons for lost workers, and failure of tasks that need more memory than there is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import LostWorker
from scalable.dask_compat.tasks import begun_on, fail_ready_task
from scalable.protocol.events import Event
from scalable.protocol.handlers import Handler, LossReason, offer
from scalable.protocol.lost_calls import MOST_OUT_OF_MEMORY, OutOfMemory
from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler.ledger import Call, Ledger, Listener
from scalable.scheduler.retrying import Retrying
from scalable.units import as_written

logger = logging.getLogger("scalable.scheduler")

#: Seconds to wait for the reason of a loss, which a manager detects after the scheduler.
REASON_S = 15.0
#: Number of lost workers, and of tasks that have lost one, that are kept.
REMEMBERED = 10_000
_LOST = "lost: "


class LostWorkers(Listener):
    """Records why workers were lost and which tasks ran on them."""

    def __init__(self, scheduler: Scheduler, retrying: Retrying) -> None:
        self._scheduler, self._retrying = scheduler, retrying
        self._connected: dict[str, WorkerState] = {}
        #: Keys of the tasks that lost workers had started, as far as known.
        self._begun: dict[str, set[Any]] = {}
        self._names: dict[str, str] = {}
        self._lost_with: dict[Any, list[str]] = {}
        self._reasons: dict[str, LossReason] = {}
        # By worker name: component and memory limit in bytes.
        self._memories: dict[str, tuple[str, int]] = {}
        self._too_large: dict[Any, int] = {}
        self._ended_for_memory: dict[str, None] = {}  # a set in order of insertion
        self._news = asyncio.Event()
        Ledger.of(scheduler).listen(self)
        offer(
            scheduler,
            {
                Handler.OUT_OF_MEMORY: self.out_of_memory,
                Handler.ENDED_FOR_MEMORY: self.ended_for_memory,
                Handler.REASONS_OF_LOSS: self.reasons_of_loss,
            },
        )

    # Events -------------------------------------------------------------------------------------

    def worker_added(self, worker: WorkerState) -> None:
        name = self._names[worker.address] = str(worker.name)
        self._connected[worker.address] = worker
        self._memories[name] = next(iter(worker.resources), ""), worker.memory_limit
        _forget_oldest(self._memories)

    def worker_lost(self, lost: LostWorker) -> None:
        name = self._names.pop(lost.address, None)
        state = self._connected.pop(lost.address, None)
        if name is None or state is None or lost.expected:
            return
        known = (self._scheduler.tasks.get(key) for key in lost.running)
        begun = begun_on(state, [task for task in known if task is not None])
        self._begun[name] = {task.key for task in begun}
        _forget_oldest(self._begun)
        for key in lost.running:
            self._lost_with.setdefault(key, []).append(name)
        _forget_oldest(self._lost_with)
        if name in self._ended_for_memory:  # counted once Dask has reassigned its tasks
            asyncio.get_running_loop().call_soon(self.ended_for_memory, [name])

    def forgotten(self, call: Call) -> None:
        self._lost_with.pop(call.key, None)
        self._too_large.pop(call.key, None)

    def event(self, event: Event) -> None:
        reason = event.get("reason") or ""
        if event.get("event") == "removed" and reason.startswith(_LOST):
            self._know(str(event["worker"]), reason.removeprefix(_LOST))

    def _know(self, name: str, reason: str, component: str = "", memory: int = 0) -> None:
        self._reasons.setdefault(name, LossReason(name, reason, component, memory))
        _forget_oldest(self._reasons)
        self._news.set()

    # Handlers -----------------------------------------------------------------------------------

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[tuple[Any, ...]]:
        """Return :class:`LossReason` fields for a task's lost workers and ``workers``.
        Waits up to ``REASON_S`` for the managers to report the reasons.
        """
        names = list(dict.fromkeys([*self._lost_with.get(key, ()), *workers]))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REASON_S
        while not all(name in self._reasons for name in names) and loop.time() < deadline:
            self._news.clear()
            try:
                async with asyncio.timeout(deadline - loop.time()):
                    await self._news.wait()
            except TimeoutError:
                break
        unknown = "its manager does not know why"
        return [tuple(self._reasons.get(name, LossReason(name, unknown))) for name in names]

    def out_of_memory(self, worker: str, keys: list[Any], used: int, limit: int) -> None:
        """Fail the tasks of a worker that stops for lack of memory, if they had a retry.
        Tasks of bundles fail at once, because their client retries them. ``worker`` is an address,
        ``used`` and ``limit`` are bytes.
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
            amounts = used, limit, component, len(keys) - 1
            if self._again(task, str(state.name), state.clean(), amounts, counts=True) is None:
                self._count_try(task, str(state.name), state.clean(), amounts)

    def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Treat the tasks of these lost workers as :meth:`out_of_memory` does.
        The target killed the workers because they used too much memory. The manager may report it
        before the scheduler notices the loss.
        """
        for name in workers:
            self._ended_for_memory[name] = None
            _forget_oldest(self._ended_for_memory)
            component, limit = self._memories.get(name, ("", 0))
            if not limit:
                continue
            self._know(name, f"it used more than {as_written(limit)}", component, limit)
            keys = [key for key, names in self._lost_with.items() if name in names]
            for key in keys:
                task = self._scheduler.tasks.get(key)
                if task is not None:
                    amounts = limit, limit, component, len(keys) - 1
                    again: bool | None = key not in self._begun.get(name, ())
                    if not again:
                        again = self._again(task, name, name, amounts, counts=False)
                    if again is None:
                        self._count_try(task, name, name, amounts)

    def _again(
        self,
        task: TaskState,
        worker: str,
        shown: Any,
        amounts: tuple[int, int, str, int],
        *,
        counts: bool,
    ) -> bool | None:
        """Retry or fail a task that ran out of memory. None if it has no retry policy."""
        call = Call(task)
        error = OutOfMemory(call.name, shown, 0, *amounts)
        again = self._retrying.out_of_memory(task, str(error), counts=counts)
        if again is not None:
            self._know(worker, f"it ran out of memory: {error}")
        if again is False:
            fail_ready_task(self._scheduler, task, error)
        return again

    def _count_try(
        self, task: TaskState, worker: str, shown: Any, amounts: tuple[int, int, str, int]
    ) -> None:
        """Count that a task ran out of memory. Fail it if it had a retry or is a bundle."""
        call = Call(task)
        self._too_large[task.key] = tries = self._too_large.get(task.key, 0) + 1
        error = OutOfMemory(call.name, shown, tries - 1, *amounts)
        self._know(worker, f"it ran out of memory: {error}")
        if call.bundle is not None or tries >= MOST_OUT_OF_MEMORY:
            logger.info("%s", error)
            fail_ready_task(self._scheduler, task, error)


def _forget_oldest(entries: dict[Any, Any]) -> None:
    while len(entries) > REMEMBERED:
        del entries[next(iter(entries))]
