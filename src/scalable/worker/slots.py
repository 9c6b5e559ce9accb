"""Lending of slots: while a task waits for nested tasks, other tasks may use its slot.

Dask's ``secede`` releases the thread of a waiting task but not its resources: in a pool of one
slot, a tagged task would wait forever for another task of its tag.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import Worker
from distributed.worker_state_machine import TaskState

from scalable.dask_compat.worker import (
    add_threads,
    change_free_resources,
    cpu_seconds,
    end_idle_threads,
    nested_call_is_next,
    stop_counting,
    task_of,
)

logger = logging.getLogger("scalable.worker")

#: Seconds after which an idle task that submitted other tasks lends its slot, even if it was not
#: observed to wait.
UNSEEN_WAIT_S = 1.0
#: Seconds after which nested tasks may start next to a task that submitted other tasks and never
#: was idle: it may wait in a loop that polls.
BUSY_WAIT_S = 5.0
#: Share of a CPU from which on the thread of a task is busy.
BUSY_SHARE = 0.05
#: Seconds between two checks of the tasks that may wait unseen.
WATCH_S = 0.25
#: Seconds between two checks for a free slot, or for a nested task that needs one.
LOOK_S = 0.01
#: Number of waiting tasks for each slot, above which a slot is lent at once only to nested tasks.
WAITING_PER_SLOT = 8
#: Seconds until another slot is lent to any task, above that number of waiting tasks.
LEND_EVERY_S = 0.05
#: The same while the worker uses more than ``MEMORY_SHARE`` of its memory.
LEND_FULL_EVERY_S = 10.0
MEMORY_SHARE = 0.6
#: Seconds after which threads that are no longer needed are stopped.
THREADS_STAY_S = 5.0


@dataclass(eq=False)
class _Call:
    """Running task that has waited for other tasks or submitted some."""

    task: TaskState
    lent: bool = False
    #: True if the wait for which the slot is lent or offered was observed.
    seen: bool = False
    #: CPU seconds of the task's thread at the last check.
    cpu_s: float | None = None
    #: Seconds for which the thread has been idle (positive) or busy (negative).
    still_s: float = 0.0
    #: True if a thread was added for tasks that start next to this task.
    has_thread: bool = False


class SlotLender:
    """Lends the slots of one worker's waiting tasks to other tasks."""

    def __init__(self, worker: Worker, used_memory: Callable[[], float] = lambda: 0.0) -> None:
        # ``used_memory`` returns the used share of the worker's memory limit, or 0 without a limit.
        self._worker, self._used_memory = worker, used_memory
        #: Records of tasks that have waited, or have submitted other tasks, by key.
        self.calls: dict[Any, _Call] = {}
        #: Waiting tasks whose slots are to be lent, in the order of their waits: too many tasks
        #: wait already.
        self._offered: dict[_Call, None] = {}
        #: Tasks that need their slot again, in the order in which their waits stopped.
        self._returning: list[_Call] = []
        self._lent_at = 0.0
        self._watches = self._looks = self._will_end_threads = False
        self._watched_at = 0.0

    @property
    def loop(self) -> Any:
        return self._worker.loop

    def lends(self, key: Any) -> bool:
        """Return whether a waiting task's slot is lent or offered. Thread-safe."""
        call = self.calls.get(key)
        return call is not None and (call.lent or call in self._offered)

    # What tasks report --------------------------------------------------------------------------

    def watch_all(self) -> None:
        """Watch all running tasks, since one of them submitted tasks from its own thread."""
        for task in self._worker.state.all_running_tasks:
            self.watch(task.key)

    def lend(self, key: Any) -> None:
        """Lend a waiting task's slot to other tasks."""
        call = self.watch(key)
        if call is not None:
            self._offer(call, seen=True)

    async def take_back(self, key: Any) -> None:
        """Wait until a resuming task has a slot again, ahead of tasks that have not started."""
        call = self.calls.get(key)
        if call is None:
            return
        self._offered.pop(call, None)
        if call.lent:
            self._claim(call)
        if call.has_thread:  # other tasks may have started in its slot
            await self._return(call)
        call.cpu_s, call.still_s = None, 0.0

    async def _return(self, call: _Call) -> None:
        """Wait until a resuming task has a slot again."""
        if call not in self._returning:
            self._returning.append(call)
        try:
            # Dask has no event for free resources.
            while call in self._returning and not self._has_turn(call):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            if call in self._returning:  # it was interrupted, and has no slot yet
                self._returning.remove(call)
                self._lend(call)
            raise
        if call in self._returning:
            self._returning.remove(call)
            self._remove_thread(call)
            logger.debug("%s has a slot again", call.task.key)

    def ended(self, key: Any) -> None:
        """Drop the record of a task that has finished."""
        call = self.calls.pop(key, None)
        if call is None:
            return
        self._offered.pop(call, None)
        if call.lent:
            self._claim(call)
        if call in self._returning:
            self._returning.remove(call)
        self._remove_thread(call)

    def watch(self, key: Any) -> _Call | None:
        """Watch a task that submits other tasks or waits for some.
        Return a running task's record, created if needed, or None for other tasks.
        """
        task = task_of(self._worker, key)
        if task is None or task not in self._worker.state.all_running_tasks:
            return None
        if not self._watches:
            self._watches, self._watched_at = True, time.monotonic()
            self.loop.call_later(WATCH_S, self._watch)
        return self.calls.setdefault(key, _Call(task))

    # Lending ------------------------------------------------------------------------------------

    def _offer(self, call: _Call, *, seen: bool) -> None:
        """Lend a waiting task's slot, now or as soon as that is allowed."""
        call.seen = seen
        if call.lent or call in self._offered:
            return
        if self._may_lend():
            self._lend(call)
            return
        self._offered[call] = None
        if not self._looks:
            self._looks = True
            self.loop.call_later(LOOK_S, self._look)

    def _may_lend(self) -> bool:
        """Return whether a slot may be lent to the next task."""
        # Tasks that wait keep their memory. Therefore only nested tasks get every slot at once:
        # they are what waiting tasks wait for.
        waiting = sum(call.lent for call in self.calls.values())
        if waiting < WAITING_PER_SLOT * self._worker.state.nthreads:
            return True
        if nested_call_is_next(self._worker):
            return True
        is_full = self._used_memory() > MEMORY_SHARE
        pause = LEND_FULL_EVERY_S if is_full else LEND_EVERY_S
        return time.monotonic() - self._lent_at > pause

    def _look(self) -> None:
        """Lend slots that were offered earlier, as far as that is allowed now."""
        while self._offered and self._may_lend():
            call = next(iter(self._offered))
            del self._offered[call]
            self._lend(call)
        self._looks = bool(self._offered)
        if self._looks:
            self.loop.call_later(LOOK_S, self._look)

    def _lend(self, call: _Call) -> None:
        logger.debug("the slot of %s is lent", call.task.key)
        call.lent, self._lent_at = True, time.monotonic()
        change_free_resources(self._worker, call.task, 1)
        self._let_begin(call)

    def _let_begin(self, call: _Call) -> None:
        """Make the worker start tasks that fit next to a waiting task."""
        if not call.has_thread:
            call.has_thread = True
            add_threads(self._worker, 1)
        stop_counting(self._worker, call.task)

    def _claim(self, call: _Call) -> None:
        """Count a task's slot as taken. No task starts while free resources are negative."""
        call.lent = False
        change_free_resources(self._worker, call.task, -1)

    def _has_turn(self, call: _Call) -> bool:
        """Return whether a resuming task has a slot."""
        # The free resources are negative while more tasks run than there are slots: each task that
        # returns has claimed its slot already.
        behind = self._returning[self._returning.index(call) + 1 :]
        free = self._worker.state.available_resources
        return all(
            free[name]
            + sum((other.task.resource_restrictions or {}).get(name, 0) for other in behind)
            >= 0
            for name in call.task.resource_restrictions or ()
        )

    def _remove_thread(self, call: _Call) -> None:
        if call.has_thread:
            call.has_thread = False
            add_threads(self._worker, -1)
            if not self._will_end_threads:
                self._will_end_threads = True
                self.loop.call_later(THREADS_STAY_S, self._end_threads)

    def _end_threads(self) -> None:
        self._will_end_threads = False
        end_idle_threads(self._worker)

    # Unseen waits -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Check the threads of tasks that may wait unnoticed."""
        now = time.monotonic()
        elapsed, self._watched_at = now - self._watched_at, now
        for call in list(self.calls.values()):
            if call not in self._returning and not (call.seen and self.lends(call.task.key)):
                self._check(call, elapsed)
        self._watches = bool(self.calls)
        if self._watches:
            self.loop.call_later(WATCH_S, self._watch)

    def _check(self, call: _Call, elapsed: float) -> None:
        """Lend the slot of an idle task, or reclaim it once the task is busy again."""
        before, call.cpu_s = call.cpu_s, cpu_seconds(self._worker, call.task.key)
        if call.cpu_s is None or before is None:
            is_busy = False
        else:
            is_busy = call.cpu_s - before > BUSY_SHARE * elapsed
        if is_busy:
            call.still_s = min(call.still_s, 0.0) - elapsed
            self._offered.pop(call, None)
            if call.lent:
                logger.debug("%s no longer waits", call.task.key)
                self._claim(call)
            elif call.still_s < -BUSY_WAIT_S and nested_call_is_next(self._worker):
                logger.debug("a nested task starts although %s is still busy", call.task.key)
                change_free_resources(self._worker, call.task, 1)
                self._let_begin(call)
                change_free_resources(self._worker, call.task, -1)
        elif not (call.lent or call in self._offered):
            call.still_s = max(call.still_s, 0.0) + elapsed
            if call.still_s >= UNSEEN_WAIT_S:
                self._offer(call, seen=False)
