"""Decisions about the tasks of lost workers, and the reasons of the losses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from distributed import Scheduler

from scalable.dask_compat.scheduler import (
    LostWorker,
    excuse_loss_of_task,
    send_to_client,
)
from scalable.dask_compat.tasks import begun_on, fail_ready_task, forget_when_released
from scalable.model.failures import OUT_OF_MEMORY
from scalable.protocol.events import Event
from scalable.protocol.failures import MOST_OUT_OF_MEMORY, OutOfMemory, WalltimeReached
from scalable.protocol.handlers import Handler, LossReason, offer
from scalable.protocol.operations import EVERY, LEAVING_TOPIC, RETURNED, WAITING_TOPIC
from scalable.runs.calls import RetryReason
from scalable.scheduler.task_log import (
    EndedTask,
    Listener,
    LoggedTask,
    LostBundle,
    TaskLog,
)
from scalable.scheduler.worker_records import WorkerRecord
from scalable.units import as_written

logger = logging.getLogger("scalable.scheduler")

#: Seconds to wait for the reason of a loss, which a manager detects after the scheduler.
REASON_S = 15.0
#: A worker lost up to this many seconds before the end of its walltime counts as cut off by it.
EARLY_S = 15.0
#: A cut-off task counts as too long if it ran for this part of the walltime, and fails the second
#: time.
LARGE_PART = 0.5
MOST_CUT_OFF = 2
_LOST = "lost: "


class WorkerLosses(Listener):
    """Decides what the loss of a worker means for its tasks, and keeps the reasons of losses.
    Dask counts each loss as a failed attempt, unless the worker has left in time. It fails a task
    after ``allowed_failures``, and a bundle at the first one: then its client counts.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._log = TaskLog.of(scheduler)
        self._records = self._log.workers
        self._news = asyncio.Event()
        self._log.listen(self)
        offer(
            scheduler,
            {
                Handler.OUT_OF_MEMORY: self.out_of_memory,
                Handler.ENDED_FOR_MEMORY: self.ended_for_memory,
                Handler.REASONS_OF_LOSS: self.reasons_of_loss,
            },
        )

    @classmethod
    def of(cls, scheduler: Any) -> WorkerLosses:
        """Return the object of a scheduler, adding one if there is none."""
        known = getattr(scheduler, "worker_losses", None)
        if not isinstance(known, cls):
            known = scheduler.worker_losses = cls(scheduler)
        return known

    # The decision -------------------------------------------------------------------------------

    def _lost_with_worker(self, call: LoggedTask, record: WorkerRecord, *, has_left: bool) -> None:
        """Handle a task of a lost worker, or of one that ``has_left`` in time."""
        task = call.task
        if call.key in record.begun:
            why = RetryReason.TAKEN_BACK if has_left else RetryReason.WORKER_LOST
            self._runs_again(call, why, record.name)
        if not has_left:
            call.lost_with += (record.name,)
        elif call.bundle is not None and task.state == "processing":
            logger.debug("bundle %s is returned: worker %s leaves", call.key, record.name)
            for client in task.who_wants or ():
                message = {"op": RETURNED, "key": call.key, "numbers": EVERY}
                send_to_client(self._scheduler, client.client_key, message)
            forget_when_released(task)

    def _runs_again(self, call: LoggedTask, reason: RetryReason, worker: str | None) -> None:
        """Record that a task or a bundle has started in vain, or that its result was lost."""
        is_bundle = call.bundle is not None
        if is_bundle:
            before = self._before(call)
            call.lost = LostBundle(1 if before is None else before.tries + 1, reason, worker)
        # Dask may have failed the task already. A bundle's tasks run again even then.
        if call.task.state != "erred" or (is_bundle and call.again is None):
            call.begin_again(reason, worker)

    def _before(self, call: LoggedTask) -> LostBundle | None:
        """Return how the bundle was lost whose tasks the given bundle resends, or None."""
        after = (call.bundle or {}).get("after")
        return None if after is None else self._log.earlier_loss(after)

    def _exceeded_memory(
        self,
        call: LoggedTask,
        record: WorkerRecord,
        about: tuple[int, int, str, int],
        worker: Any,
        *,
        counts: bool,
    ) -> None:
        """Retry a task by its retry policy, or a limited number of times. Fail a bundle at once."""
        error = OutOfMemory(call.name, worker, 0, *about)
        retrying = getattr(self._scheduler, "retrying", None)
        again = retrying and retrying.out_of_memory(call.task, str(error), counts=counts)
        if again is None:
            call.too_large += 1
            error = OutOfMemory(call.name, worker, call.too_large - 1, *about)
            again = call.bundle is None and call.too_large < MOST_OUT_OF_MEMORY
        self._know(record.name, f"it ran out of memory: {error}")
        if not again:
            logger.info("%s", error)
            fail_ready_task(self._scheduler, call.task, error)

    def _reached_walltime(self, call: LoggedTask, record: WorkerRecord) -> None:
        """Warn about a task that used most of a worker's walltime. Fail it the next time."""
        state, ran_s = record.state, 0.0
        if record.walltime is None or state is None:
            return
        end, walltime_s = record.walltime
        if call.task in state.executing:
            ran_s = state.executing[call.task] + max(0.0, time.time() - state.last_seen)
        if time.monotonic() < end - EARLY_S or ran_s < LARGE_PART * walltime_s:
            return
        call.cut_off += 1
        error = WalltimeReached(call.name, record.name, call.cut_off - 1, ran_s, walltime_s)
        if call.cut_off >= MOST_CUT_OFF and call.bundle is None:
            logger.info("%s", error)
            # Dask assigns its tasks to other workers first.
            loop = asyncio.get_running_loop()
            loop.call_soon(fail_ready_task, self._scheduler, call.task, error)
        else:
            logger.warning("%s. It is started again", error)
            event = {"clients": [], "words": f"{error}. It is started again"}
            self._scheduler.log_event(WAITING_TOPIC, event)

    # Events -------------------------------------------------------------------------------------

    def bundle_submitted(self, call: LoggedTask) -> None:
        """Record that a bundle resends tasks that started in a lost bundle."""
        if (before := self._before(call)) is not None:
            call.tries = before.tries
            call.again = call.repeated = before.reason, before.worker
            # Until it has started, its tasks run again for the same reason.
            call.lost = before

    def bundle_ended(self, end: EndedTask) -> None:
        """Record a bundle that failed because its worker ran out of memory."""
        if end.runs_again and end.failure()[0] == OUT_OF_MEMORY:
            self._runs_again(end.call, RetryReason.WORKER_LOST, end.worker)

    def worker_lost(self, lost: LostWorker) -> None:
        record = self._records.at(lost.address)
        if record is None or record.state is None:
            return
        calls = [call for key in lost.running if (call := self._log.find(key)) is not None]
        for call in calls:
            self._reached_walltime(call, record)
            self._lost_with_worker(call, record, has_left=lost.expected)
        record.walltime = None
        for key in lost.computed:
            if (call := self._log.find(key)) is not None:
                self._runs_again(call, RetryReason.RESULT_LOST, record.name)
        if record.excused:
            self._excuse(record)
        if record.exceeded_memory and record.keys:  # counted once Dask has reassigned its tasks
            asyncio.get_running_loop().call_soon(self.ended_for_memory, [record.name])

    def event(self, event: Event) -> None:
        reason = event.get("reason") or ""
        if event.get("event") == "removed" and reason.startswith(_LOST):
            self._know(str(event["worker"]), reason.removeprefix(_LOST))

    def _know(self, name: str, reason: str, component: str = "", memory: int = 0) -> None:
        record = self._records.of(name)
        if record.reason is None:
            record.reason = LossReason(name, reason, component, memory)
        self._news.set()

    # Handlers -----------------------------------------------------------------------------------

    def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against their tasks."""
        for record in map(self._records.of, workers):
            if record.excusable:
                self._excuse(record)
            else:
                record.excused = True

    def _excuse(self, record: WorkerRecord) -> None:
        record.excusable = False
        keys = record.keys
        logger.debug("the loss of worker %s is not counted against %s", record.name, keys)
        for key in keys:
            if (call := self._log.find(key)) is not None:
                excuse_loss_of_task(call.task)

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[tuple[Any, ...]]:
        """Return :class:`LossReason` fields of lost workers, waiting for reports if necessary."""
        call = self._log.find(key)
        names = list(dict.fromkeys([*(call.lost_with if call else ()), *workers]))
        with suppress(TimeoutError):
            async with asyncio.timeout(REASON_S):
                while not all(map(self._reason, names)):
                    self._news.clear()
                    await self._news.wait()
        unknown = "its manager has reported no reason"
        return [tuple(self._reason(name) or LossReason(name, unknown)) for name in names]

    def _reason(self, name: str) -> LossReason | None:
        record = self._records.get(name)
        return None if record is None else record.reason

    def out_of_memory(self, worker: str, keys: list[Any], used: int, limit: int) -> None:
        """Retry or fail the tasks of a worker that stops for lack of memory.
        Without running tasks (``keys``), the inputs of its next tasks have filled it. Bundles fail
        at once. ``worker`` is an address, and ``used`` and ``limit`` are in bytes.
        """
        record = self._records.at(worker)
        state = None if record is None else record.state
        if record is None or state is None:
            return
        keys = keys or [task.key for task in begun_on(state, state.processing)]
        if not keys:
            return
        record.counted = True
        self._scheduler.log_event(LEAVING_TOPIC, worker)
        about = used, limit, record.tag, len(keys) - 1
        for call in map(self._log.find, keys):
            if call is not None and call.task.processing_on is state:
                self._exceeded_memory(call, record, about, state.clean(), counts=True)

    def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Treat the tasks of lost workers as :meth:`out_of_memory` does, unless it was called."""
        for record in map(self._records.of, dict.fromkeys(workers)):
            if record.counted:
                continue
            record.exceeded_memory = True
            limit = record.memory_limit
            if not limit:
                continue
            self._know(record.name, f"it used more than {as_written(limit)}", record.tag, limit)
            about = limit, limit, record.tag, len(record.keys) - 1
            for call in map(self._log.find, record.keys):
                if call is not None and call.key in record.begun:
                    self._exceeded_memory(call, record, about, record.name, counts=False)
