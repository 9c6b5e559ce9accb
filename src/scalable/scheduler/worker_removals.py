"""Draining of workers before they are stopped: their tasks end, and their results move away."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import (
    Stealing,
    ask_task_states,
    ignore_worker_status,
    set_worker_status,
)
from scalable.dask_compat.scheduler_extensions import ShufflesOf
from scalable.scheduler.task_log import Listener, TaskLog
from scalable.scheduler.worker_losses import WorkerLosses
from scalable.scheduler.worker_records import Stage

logger = logging.getLogger("scalable.scheduler")

#: Maximum number of characters of a drain's reason. The rest is cut off.
LONGEST_REASON = 500


class WorkerRemovals(Listener):
    """Drains workers by name before they are stopped."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.records = TaskLog.of(scheduler).workers
        self._retirements = Retirements(scheduler)
        self._losses = WorkerLosses.of(scheduler)
        TaskLog.of(scheduler).listen(self)
        ignore_worker_status(scheduler, self._ignores)

    def abandon(self) -> None:
        """Stop all draining when the scheduler closes. The workers are left as they are."""
        for record in self.records:
            if record.drain is not None:
                record.drain.abandon()
        self._retirements.close()

    def drains(self, worker: WorkerState) -> bool:
        record = self.records.at(worker.address)
        return record is not None and record.stage is Stage.DRAINING

    def why(self, worker: WorkerState) -> str:
        """Return why a worker is drained or leaves on its own, or "" for other workers."""
        record = self.records.at(worker.address)
        if record is None or record.drain is None:
            return ""
        return record.leaves or str(record.drain.reason)

    def notice(self, worker: str, left_s: float, reason: str) -> None:
        """Drain a worker preempted in ``left_s`` seconds. Tasks are not blamed for its loss."""
        record = self.records.at(worker)
        if record is None or record.state is None or record.leaves is not None:
            return
        logger.info("worker %s leaves within %.0f s: %s", record.name, left_s, reason)
        record.leaves = reason
        self.records.dismiss(worker)
        self._losses.excuse_losses([record.name])
        self.drain({record.name: reason})
        record.drain.leave_within(left_s)

    def drain(
        self,
        workers: Mapping[str, str],
        walltimes: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        """Start draining workers, given as a mapping from names to reasons for the user.
        Unknown names and draining workers are ignored. ``walltimes`` maps names to the remaining
        and the total seconds. Such workers hand over their results while tasks still run.
        """
        for name, reason in workers.items():
            record = self.records.get(name)
            if record is None or (worker := record.state) is None:
                continue
            if record.drain is None:
                calls = len(worker.processing)
                logger.debug("worker %s is drained: %s; %d tasks", name, reason, calls)
                record.drain = Drain(self.scheduler, worker, self._retirements, reason)
            if walltimes and (times := walltimes.get(name)):
                left_s, walltime_s = times
                record.walltime = time.monotonic() + left_s, walltime_s
                record.drain.hand_over_within(left_s)

    def give_up(self, worker: str, key: Any) -> None:
        """Drain a worker that cannot interrupt the given task, without waiting for the task."""
        record = self.records.at(worker)
        if record is not None and record.state is not None:
            logger.info("worker %s is replaced: interrupted task %s still runs", record.name, key)
            self.drain({record.name: "a task was interrupted on it but does not stop"})
            record.drain.give_up(key)

    def resume(self, workers: Iterable[str]) -> list[str]:
        """Make workers accept work again unless it is too late, and return their names."""
        accepting = []
        for name in workers:
            record = self.records.get(name)
            if record is None or record.state is None:
                continue
            if record.drain is not None and record.drain.cancel():
                logger.debug("worker %s accepts work again", name)
                record.drain = None
            if record.drain is None:
                accepting.append(name)
        return accepting

    def _ignores(self, address: str, status: Status) -> bool:
        """Return whether a reported status predates the order to accept no tasks."""
        record = self.records.at(address)
        drain = None if record is None else record.drain
        return drain is not None and drain.has_closed and status is Status.running

    # Events of the task log -----------------------------------------------------------------------

    def worker_added(self, worker: WorkerState) -> None:
        name = str(worker.name)
        if self.records.of(name).withheld:
            logger.debug("worker %s connected although its unit is being stopped", name)
            self.drain({name: "its unit is being stopped"})

    def worker_removed(self, address: str) -> None:
        record = self.records.at(address)
        drain = None if record is None else record.drain
        if drain is not None and drain.state != "done" and address not in self.scheduler.workers:
            drain.state = "done"


# Drain --------------------------------------------------------------------------------------------

POLL_S = 0.1
RETRY_HOLDING_S = 2.0
ASK_TIMEOUT_S = 30.0
#: Seconds after which a worker leaves even if it takes part in shuffles.
SHUFFLES_LIMIT_S = 600.0
#: Seconds before its deadline at which a worker leaves even if tasks run, or (``FORCE``) even if
#: results were not moved. At most the given part of the worker's remaining time.
LEAVE_BEFORE_S, LEAVE_PART = 8.0, 0.5
FORCE_BEFORE_S, FORCE_PART = 3.0, 0.2
MOVE_INTERVAL_S = 1.0
LATE_S = 60.0
#: States that a worker gives to a task that has not started.
_NOT_BEGUN = frozenset(
    {"released", "waiting", "fetch", "flight", "missing", "ready", "constrained"}
)

_serial = itertools.count()


class Drain:
    """Draining of one worker. It starts when the object is created.
    ``state`` is ``draining``, ``holding`` (no other worker can take its results) or ``done`` (it
    has left). Tasks cut at the deadline of a preempted worker do not count as failed.
    """

    def __init__(
        self, scheduler: Scheduler, worker: WorkerState, retirements: Retirements, reason: str
    ) -> None:
        self.state = "draining"
        self.reason = str(reason)[:LONGEST_REASON]
        self.has_closed = False
        self._given_up: set[Any] = set()
        self._scheduler = scheduler
        self._retirements = retirements
        self._worker = worker
        self._stealing = Stealing(scheduler)
        self._retiring = False
        # A flag in addition to cancelling the task: Dask's comms may swallow a cancellation.
        self._abandoned = False
        #: Tasks of the event loop, by what they do.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._shuffles = ShufflesOf(scheduler, worker.address)
        self._shuffles.avoid(True)
        if not self._shuffles.running():
            # Set at once, not in the task: a worker that has just connected must get no work.
            self._set_status(Status.closing_gracefully)
        self._begin("drain", self._run)

    def cancel(self) -> bool:
        """Make the worker accept work again, or return False if it is too late."""
        limited = "leave in time" in self._tasks
        if self._retiring or self._given_up or limited or self.state == "done":
            return False
        self.abandon()
        if self._worker.address in self._scheduler.workers:
            self._set_status(Status.running)
        return True

    def give_up(self, key: Any) -> None:
        """Stop waiting for a task that was interrupted and keeps running."""
        self._given_up.add(key)

    def leave_within(self, left_s: float) -> None:
        """Make the worker leave before its deadline in ``left_s`` seconds, even if tasks run."""
        self._begin("leave in time", partial(self._leave_in_time, left_s))

    def hand_over_within(self, left_s: float) -> None:
        """Move the worker's results while its tasks run, until its walltime ends."""
        # A batch system kills a job a little after its walltime.
        end = time.monotonic() + left_s + LATE_S
        self._begin("hand over", partial(self._move_results, end))

    def abandon(self) -> None:
        """Stop draining, without changing the worker's status."""
        self._abandoned = True
        for task in self._tasks.values():
            task.cancel()
        self._shuffles.avoid(False)

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a part of the drain, unless it has been started."""
        if name not in self._tasks:
            task = asyncio.create_task(work(), name=f"{name}: worker {self._worker.name}")
            task.add_done_callback(self._ended)
            self._tasks[name] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("draining %s failed: %r", self._worker.name, error, exc_info=error)

    @property
    def _present(self) -> bool:
        return self._scheduler.workers.get(self._worker.address) is self._worker

    @property
    def _goes_on(self) -> bool:
        return self._present and not self._abandoned

    async def _run(self) -> None:
        await self._shuffles_end()
        while self._goes_on:
            if self._worker.status is not Status.closing_gracefully:
                self._set_status(Status.closing_gracefully)  # the worker was still starting
            self._hand_over()
            if self._holds_results_for_good():
                self._hold("no other worker can take its results")
            elif await self._idle() and not self._abandoned:
                self._retiring = True
                retired = await self._retirements.retire(self._worker.address)
                self._retiring = False
                if retired or not self._present:
                    break
                self._hold("Dask could not move its results")
                await asyncio.sleep(RETRY_HOLDING_S)
            await asyncio.sleep(POLL_S)
        self.state = "done"
        self._shuffles.avoid(False)
        logger.debug("worker %s is drained and has left", self._worker.name)

    async def _leave_in_time(self, left_s: float) -> None:
        end = time.monotonic() + left_s
        leave_at = end - min(LEAVE_BEFORE_S, LEAVE_PART * left_s)
        force_at = end - min(FORCE_BEFORE_S, FORCE_PART * left_s)
        await self._move_results(leave_at)
        if self._goes_on and self._worker.processing:
            calls = len(self._worker.processing)
            logger.info("worker %s leaves before %d tasks have finished", self._worker.name, calls)
        while self._goes_on and time.monotonic() < force_at:
            await self._retire(force_at, remove=True)
            await asyncio.sleep(POLL_S)
        if self._goes_on:
            lost = len(self._worker.has_what)
            logger.info("worker %s leaves, and %d results on it are lost", self._worker.name, lost)
            await self._scheduler.remove_worker(
                self._worker.address, expected=True, stimulus_id=f"scalable-leave-{next(_serial)}"
            )

    async def _move_results(self, until: float) -> None:
        while self._goes_on and time.monotonic() < until:
            if self._worker.has_what and not self._holds_results_for_good():
                await self._retire(until, remove=False)
            await asyncio.sleep(min(MOVE_INTERVAL_S, max(0.0, until - time.monotonic())))

    async def _retire(self, until: float, *, remove: bool) -> None:
        moving = asyncio.ensure_future(
            self._scheduler.retire_workers(workers=[self._worker.address], remove=remove)
        )
        await asyncio.wait([moving], timeout=max(0.0, until - time.monotonic()))
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _shuffles_end(self) -> None:
        """Wait for Dask's shuffles on the worker, which would otherwise restart on others."""
        deadline = time.monotonic() + SHUFFLES_LIMIT_S
        while self._shuffles.running() and self._goes_on:
            if time.monotonic() > deadline:
                logger.warning("worker %s leaves during a shuffle", self._worker.name)
                return
            await asyncio.sleep(POLL_S)

    def _hold(self, reason: str) -> None:
        if self.state != "holding":
            logger.debug("worker %s cannot leave yet: %s", self._worker.name, reason)
        self.state = "holding"

    def _holds_results_for_good(self) -> bool:
        """Return whether no other worker can ever take the worker's results or actors."""
        if self._worker.actors:
            return True
        running = self._scheduler.running
        if len(running) > (self._worker in running):  # there are others
            return False
        return any(len(task.who_has or ()) < 2 for task in self._worker.has_what)

    def _set_status(self, status: Status) -> None:
        """Set the worker's status, but never ``paused``: Dask's memory manager may undo that."""
        self.has_closed = status is Status.closing_gracefully
        set_worker_status(self._scheduler, self._worker, status, f"scalable-drain-{next(_serial)}")

    def _hand_over(self) -> None:
        """Move unstarted tasks to other workers by work stealing, which the worker confirms."""
        load = Counter[WorkerState]()

        def burden(worker: WorkerState) -> float:
            return (len(worker.processing) + load[worker]) / max(1, worker.nthreads)

        for task in self._stealing.movable(self._worker):
            thief = min(self._able(task), key=burden, default=None)
            if thief is not None:
                logger.debug("task %s is offered to worker %s", task.key, thief.name)
                load[thief] += 1
                self._stealing.move(task, self._worker, thief)

    def _able(self, task: TaskState) -> Iterable[WorkerState]:
        """Return running workers that can take a task, or a few of them if there are many."""
        placement = getattr(self._scheduler, "placement", None)
        if placement is not None and placement.takes(task):
            few: Iterable[WorkerState] = placement.few(task)
            return few
        valid = self._scheduler.valid_workers(task)
        running = self._scheduler.running
        return list(running) if valid is None else [w for w in valid if w in running]

    async def _idle(self) -> bool:
        assigned = [t.key for t in self._worker.processing if t.key not in self._given_up]
        if self._stealing.asks(self._worker):
            return False
        try:
            answer = await asyncio.wait_for(
                ask_task_states(self._scheduler, self._worker, assigned), ASK_TIMEOUT_S
            )
        except (OSError, TimeoutError):
            return False  # the worker is lost or too busy to answer, and the loop retries
        if answer is None:
            logger.warning(
                "worker %s did not report its tasks; the request is repeated", self._worker.name
            )
            return False
        status, states = answer
        # A task that has finished on the worker may still be running in the scheduler's view.
        return bool(
            status == Status.closing_gracefully.name
            and all(
                state in _NOT_BEGUN
                for key, (state, _) in states.items()
                if key not in self._given_up
            )
            and all(key in states or self._gone(key) for key in assigned)
        )

    def _gone(self, key: Any) -> bool:
        task = self._scheduler.tasks.get(key)
        return task is None or task.processing_on is not self._worker


# Retirements --------------------------------------------------------------------------------------

#: Seconds for which workers are collected. Drains check their workers every 0.1 s.
COLLECT_S = 0.05
#: Number of workers that Dask retires at once. For each of their results it compares all other
#: workers (2 ms with 5,000) in one turn of the event loop.
AT_ONCE = 20
#: Seconds after which the next workers retire even if results of earlier ones still move.
LONGEST_S = 1.0


class Retirements:
    """Moves the results of many workers away and removes the workers, using Dask."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        #: Answers to the workers that wait for the next batch, by address.
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._batches = set[asyncio.Task[None]]()

    async def retire(self, address: str) -> bool:
        """Retire a worker, and return False if its results could not be moved."""
        if not self._asked:
            self._begin(self._retire_soon())
        answer = self._asked.setdefault(address, asyncio.get_running_loop().create_future())
        return await asyncio.shield(answer)

    def close(self) -> None:
        for batch in self._batches:
            batch.cancel()

    def _begin(self, retiring: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        batch = asyncio.create_task(retiring, name="retire workers")
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)
        return batch

    async def _retire_soon(self) -> None:
        await asyncio.sleep(COLLECT_S)
        asked, self._asked = self._asked, {}
        waiting = iter(asked.items())
        while part := dict(islice(waiting, AT_ONCE)):
            await asyncio.wait([self._begin(self._retire(part))], timeout=LONGEST_S)

    async def _retire(self, asked: Mapping[str, asyncio.Future[bool]]) -> None:
        retired: Mapping[str, Any] = {}
        try:
            with suppress(OSError):  # the drains ask again
                retired = await self._scheduler.retire_workers(workers=list(asked))
        finally:  # whatever Dask raises
            for address, answer in asked.items():
                answer.set_result(address in retired)
