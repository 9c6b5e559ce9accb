"""Draining of a worker before it leaves, so that no result is lost and no call runs twice.

Dask's ``retire_workers`` moves stored results, but calls that still run are run again elsewhere.
Therefore these steps come before it:

1. the drain waits, for a limited time, until Dask's shuffles on the worker have ended; they would
   begin again on other workers;
2. the worker is told to begin no more calls. Its status becomes ``closing_gracefully`` and not
   ``paused``, because Dask's memory manager may end a pause;
3. calls that have not begun are moved to other workers with Dask's work stealing, in which the
   worker confirms that a call has not begun;
4. the drain waits until the running calls have ended.

A worker whose machine is taken back has only some time left. Its results are moved while its calls
run, and calls that do not end in time are cut as late as possible and run again elsewhere; Dask
does not count that as a failure of theirs.
"""

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
#: Seconds after which a worker leaves although it takes part in shuffles.
SHUFFLES_LIMIT_S = 600.0
#: Seconds before its end at which a worker whose time is limited leaves although calls run, and at
#: which it leaves although it has results that could not be moved. Never more than the given part
#: of its time.
LEAVE_BEFORE_S, LEAVE_PART = 8.0, 0.5
FORCE_BEFORE_S, FORCE_PART = 3.0, 0.2
MOVE_INTERVAL_S = 1.0
#: States that a worker gives to a task which has not begun to run.
_NOT_BEGUN = frozenset(
    {"released", "waiting", "fetch", "flight", "missing", "ready", "constrained"}
)

_serial = itertools.count()


class Drain:
    """The draining of one worker; it begins when the object is made, in the event loop.

    Parameters
    ----------
    scheduler, worker
        The worker to drain, and its scheduler.
    retirements
        Retires workers that are drained, together.

    Attributes
    ----------
    state
        ``draining``; ``holding`` while the worker has results that no other worker can take;
        ``done`` once it has left the scheduler.
    has_closed
        Whether the worker was told to begin no more calls.
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
        """Let the worker accept work again; return False if it is too late for that.

        It is too late once Dask retires the worker, once the worker has left, if it has a call that
        was given up, or if its time is limited.
        """
        limited = self._leaving_in_time is not None
        if self._retiring or self._given_up or limited or self.state == "done":
            return False
        self.abandon()
        if self._worker.address in self._scheduler.workers:
            self._set_status(Status.running)
        return True

    def give_up(self, key: Any) -> None:
        """Do not wait for the end of this task: it was interrupted and does not end."""
        self._given_up.add(key)

    def leave_within(self, left_s: float) -> None:
        """Make the worker leave before its end in ``left_s`` seconds, even if calls still run."""
        if self._leaving_in_time is None:
            name = f"drain {self._worker.name} in {left_s:.0f} s"
            self._leaving_in_time = asyncio.create_task(self._leave_in_time(left_s), name=name)
            self._leaving_in_time.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Stop draining, without a change of the worker's status."""
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
        """Move results while calls run; end the worker's part in the cluster before its machine."""
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
        """Have Dask move the worker's results, and wait for it until a monotonic time at most."""
        moving = asyncio.ensure_future(
            self._scheduler.retire_workers(workers=[self._worker.address], remove=remove)
        )
        await asyncio.wait([moving], timeout=max(0.0, until - time.monotonic()))
        moving.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _shuffles_end(self) -> None:
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
        self.has_closed = status is Status.closing_gracefully
        set_worker_status(self._scheduler, self._worker, status, f"scalable-drain-{next(_serial)}")

    def _hand_over(self) -> None:
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
        """Return running workers that can take a call: a few, where there are many."""
        placement: TagPlacement | None = getattr(self._scheduler, "placement", None)
        if placement is not None and placement.takes(task):
            return placement.few(task)
        valid = self._scheduler.valid_workers(task)
        running = self._scheduler.running
        return list(running) if valid is None else [w for w in valid if w in running]

    async def _idle(self) -> bool:
        """Return whether the worker has stopped accepting calls and has finished every call."""
        assigned = [t.key for t in self._worker.processing if t.key not in self._given_up]
        if self._stealing.asks(self._worker):
            return False
        try:
            answer = await asyncio.wait_for(
                ask_task_states(self._scheduler, self._worker, assigned), ASK_TIMEOUT_S
            )
        except (OSError, TimeoutError):
            return False  # the worker is lost or too busy to answer; the loop asks again
        if answer is None:
            logger.warning(
                "worker %s did not report its calls; it is asked again", self._worker.name
            )
            return False
        status, states = answer
        # A call that has ended on the worker may still be running in the scheduler's view.
        return bool(
            status == Status.closing_gracefully.name
            and all(state in _NOT_BEGUN for state in states.values())
            and all(key in states or self._gone(key) for key in assigned)
        )

    def _gone(self, key: Any) -> bool:
        task = self._scheduler.tasks.get(key)
        return task is None or task.processing_on is not self._worker
