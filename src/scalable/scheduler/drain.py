"""Draining of a worker before it leaves, so that no result is lost and no task runs twice."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.connections import set_worker_status
from scalable.protocol.dask_seams.scheduler import Stealing, ask_task_states
from scalable.protocol.dask_seams.shuffles import ShufflesOf
from scalable.scheduler.placement import TagPlacement
from scalable.scheduler.retirements import Retirements

logger = logging.getLogger("scalable.scheduler")

POLL_S = 0.1
RETRY_HOLDING_S = 2.0
ASK_TIMEOUT_S = 30.0
#: Seconds after which a worker leaves even if it takes part in shuffles.
SHUFFLES_LIMIT_S = 600.0
#: Seconds before its deadline at which a worker leaves even if tasks run, and at which it leaves
#: even if results could not be moved. Never more than the given part of its time.
LEAVE_BEFORE_S, LEAVE_PART = 8.0, 0.5
FORCE_BEFORE_S, FORCE_PART = 3.0, 0.2
MOVE_INTERVAL_S = 1.0
#: States that a worker gives to a task that has not started.
_NOT_BEGUN = frozenset(
    {"released", "waiting", "fetch", "flight", "missing", "ready", "constrained"}
)

_serial = itertools.count()


class Drain:
    """Draining of one worker, which starts in the event loop when the object is made.
    Dask's ``retire_workers`` moves results, but reruns running tasks elsewhere. So the drain first
    waits for shuffles and running tasks, and moves tasks that have not started. A preempted worker
    has limited time. Its results move while tasks run, and tasks cut at the deadline rerun
    elsewhere without counting as failed. ``state`` is ``draining``, ``holding`` (no other worker
    can take its results) or ``done`` (it has left).
    """

    def __init__(self, scheduler: Scheduler, worker: WorkerState, retirements: Retirements) -> None:
        self.state = "draining"
        self.has_closed = False
        self._given_up: set[Any] = set()
        self._scheduler = scheduler
        self._retirements = retirements
        self._worker = worker
        self._stealing = Stealing(scheduler)
        self._retiring = False
        # A flag in addition to cancelling the task: Dask's comms may swallow a cancellation.
        self._abandoned = False
        self._leaving_in_time: asyncio.Task[None] | None = None
        self._shuffles = ShufflesOf(scheduler, worker.address)
        self._shuffles.avoid(True)
        if not self._shuffles.running():
            # Set at once, not in the task: a worker that has just connected must get no work.
            self._set_status(Status.closing_gracefully)
        self._task = asyncio.create_task(self._run(), name=f"drain {worker.name}")
        self._task.add_done_callback(self._ended)

    def cancel(self) -> bool:
        """Make the worker accept work again, or return False if it is too late.
        It is too late while Dask retires the worker and after it has left, if a task was given up,
        or if its time is limited.
        """
        limited = self._leaving_in_time is not None
        if self._retiring or self._given_up or limited or self.state == "done":
            return False
        self.abandon()
        if self._worker.address in self._scheduler.workers:
            self._set_status(Status.running)
        return True

    def give_up(self, key: Any) -> None:
        """Do not wait for this task, which was interrupted and keeps running."""
        self._given_up.add(key)

    def leave_within(self, left_s: float) -> None:
        """Make the worker leave before its deadline in ``left_s`` seconds, even if tasks run."""
        if self._leaving_in_time is None:
            name = f"drain {self._worker.name} in {left_s:.0f} s"
            self._leaving_in_time = asyncio.create_task(self._leave_in_time(left_s), name=name)
            self._leaving_in_time.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Stop draining, without changing the worker's status."""
        self._abandoned = True
        if self._leaving_in_time is not None:
            self._leaving_in_time.cancel()
        self._shuffles.avoid(False)
        self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("draining %s failed: %r", self._worker.name, error, exc_info=error)

    @property
    def _present(self) -> bool:
        return self._scheduler.workers.get(self._worker.address) is self._worker

    async def _run(self) -> None:
        await self._shuffles_end()
        while self._present and not self._abandoned:
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
        while self._goes_on and time.monotonic() < leave_at:
            if self._worker.has_what and not self._holds_results_for_good():
                await self._retire(leave_at, remove=False)
            await asyncio.sleep(min(MOVE_INTERVAL_S, max(0.0, leave_at - time.monotonic())))
        if self._goes_on and self._worker.processing:
            calls = len(self._worker.processing)
            logger.info("worker %s leaves with %d calls: no time left", self._worker.name, calls)
        while self._goes_on and time.monotonic() < force_at:
            await self._retire(force_at, remove=True)
            await asyncio.sleep(POLL_S)
        if self._goes_on:
            lost = len(self._worker.has_what)
            logger.info("worker %s leaves with %d results", self._worker.name, lost)
            await self._scheduler.remove_worker(
                self._worker.address, expected=True, stimulus_id=f"scalable-leave-{next(_serial)}"
            )

    @property
    def _goes_on(self) -> bool:
        return self._present and not self._abandoned

    async def _retire(self, until: float, *, remove: bool) -> None:
        moving = asyncio.ensure_future(
            self._scheduler.retire_workers(workers=[self._worker.address], remove=remove)
        )
        await asyncio.wait([moving], timeout=max(0.0, until - time.monotonic()))
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _shuffles_end(self) -> None:
        """Wait for Dask's shuffles on the worker, which would restart on other workers."""
        deadline = time.monotonic() + SHUFFLES_LIMIT_S
        while self._shuffles.running() and self._present and not self._abandoned:
            if time.monotonic() > deadline:
                logger.warning("worker %s leaves in the midst of a shuffle", self._worker.name)
                return
            await asyncio.sleep(POLL_S)

    def _hold(self, reason: str) -> None:
        if self.state != "holding":
            logger.debug("worker %s cannot leave yet: %s", self._worker.name, reason)
        self.state = "holding"

    def _holds_results_for_good(self) -> bool:
        """Return whether the worker has results or actors that no other worker can take."""
        if self._worker.actors:
            return True
        running = self._scheduler.running
        if len(running) > (self._worker in running):  # there are others
            return False
        return any(len(task.who_has or ()) < 2 for task in self._worker.has_what)

    def _set_status(self, status: Status) -> None:
        """Set the worker's status: not ``paused``, which Dask's memory manager may undo."""
        self.has_closed = status is Status.closing_gracefully
        set_worker_status(self._scheduler, self._worker, status, f"scalable-drain-{next(_serial)}")

    def _hand_over(self) -> None:
        """Move tasks by work stealing, in which the worker confirms that they have not started."""
        load: dict[WorkerState, int] = {}
        for task in self._stealing.movable(self._worker):
            thief = self._thief(task, load)
            if thief is not None:
                logger.debug("call %s is offered to worker %s", task.key, thief.name)
                load[thief] = load.get(thief, 0) + 1
                self._stealing.move(task, self._worker, thief)

    def _thief(self, task: TaskState, load: dict[WorkerState, int]) -> WorkerState | None:
        return min(
            self._able(task),
            key=lambda w: (len(w.processing) + load.get(w, 0)) / max(1, w.nthreads),
            default=None,
        )

    def _able(self, task: TaskState) -> Iterable[WorkerState]:
        """Return running workers that can take a task, only a few of many."""
        placement: TagPlacement | None = getattr(self._scheduler, "placement", None)
        if placement is not None and placement.takes(task):
            return placement.few(task)
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
                "worker %s did not report its calls; it is asked again", self._worker.name
            )
            return False
        status, states = answer
        # A task that has finished on the worker may still be running in the scheduler's view.
        return bool(
            status == Status.closing_gracefully.name
            and all(state in _NOT_BEGUN for state in states.values())
            and all(key in states or self._gone(key) for key in assigned)
        )

    def _gone(self, key: Any) -> bool:
        task = self._scheduler.tasks.get(key)
        return task is None or task.processing_on is not self._worker
