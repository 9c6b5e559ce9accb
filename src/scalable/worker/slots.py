"""Lending of slots: a call that waits for nested calls lets other calls use its slot.

A *slot* is room for one call on a worker. Dask's ``secede`` releases the thread of a waiting call,
but not the call's resources: on a pool of one slot, a tagged call would wait forever for another
call of its tag.

A wait is *seen* when the call's thread reports it. A call that has made other calls may also wait
*unseen* (``as_completed``, an event, threads of its own), so its thread is watched.
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

from scalable.protocol.dask_seams.worker import (
    add_threads,
    change_free_resources,
    cpu_seconds,
    end_idle_threads,
    free_resources,
    is_running,
    nested_call_is_next,
    running_tasks,
    seams,
    stop_counting,
    task_of,
)

logger = logging.getLogger("scalable.worker")

#: Seconds after which the slot of an idle call that submitted other calls is lent even if no wait
#: was seen.
UNSEEN_WAIT_S = 1.0
#: Seconds after which nested calls may begin beside a call that submitted other calls and never
#: was idle: it may wait in a loop that polls.
BUSY_WAIT_S = 5.0
#: Share of a CPU from which on the thread of a call is busy.
BUSY_SHARE = 0.05
#: Seconds between two checks of the calls that may wait unseen.
WATCH_S = 0.25
#: Seconds between two checks for a free slot, or for a nested call that needs one.
LOOK_S = 0.01
#: Number of waiting calls for each slot, above which a slot is lent at once only to nested calls.
WAITING_PER_SLOT = 8
#: Above this number of waiting calls, seconds until another slot is lent to any call.
LEND_EVERY_S = 0.05
#: The same while the worker uses more than ``MEMORY_SHARE`` of its memory.
LEND_FULL_EVERY_S = 10.0
MEMORY_SHARE = 0.6
#: Seconds after which threads that are no longer needed end.
THREADS_STAY_S = 5.0


@dataclass(eq=False)
class _Call:
    """A running call that has waited for other calls, or has made other calls.

    Attributes
    ----------
    task
        Worker's state of the call.
    lent
        Whether the slot is lent.
    offered
        Whether the slot is to be lent, and too many calls wait already.
    seen
        Whether the wait for which the slot is lent or offered was seen.
    cpu_s
        CPU seconds of the call's thread at the last check.
    still_s
        Seconds for which the thread has been idle (positive) or busy (negative).
    has_thread
        Whether a thread was added for calls that begin beside this call.
    """

    task: TaskState
    lent: bool = False
    offered: bool = False
    seen: bool = False
    cpu_s: float | None = None
    still_s: float = 0.0
    has_thread: bool = False


class SlotLender:
    """Lends the slots of waiting calls on one worker. Runs in the worker's event loop.

    Parameters
    ----------
    worker
        Worker whose slots are lent.
    used_memory
        Function that returns the share of the worker's memory limit that is used; 0 if there is
        no limit.
    """

    def __init__(self, worker: Worker, used_memory: Callable[[], float] = lambda: 0.0) -> None:
        seams.check()
        self._worker, self._used_memory = worker, used_memory
        self._calls: dict[Any, _Call] = {}
        #: Calls that wait for another slot than theirs to become free, in the order of their waits.
        self._offered: list[_Call] = []
        #: Calls that need their slot again, in the order in which their waits ended.
        self._returning: list[_Call] = []
        self._lent_at = 0.0
        self._watches = self._looks = self._will_end_threads = False
        self._watched_at = 0.0

    @property
    def loop(self) -> Any:
        """Event loop of the worker."""
        return self._worker.loop

    def lends(self, key: Any) -> bool:
        """Return whether a call waits, and its slot is lent or offered; for any thread."""
        call = self._calls.get(key)
        return call is not None and (call.lent or call.offered)

    # What calls report --------------------------------------------------------------------------

    def watch(self, key: Any) -> None:
        """Watch a call that has made other calls: it may wait for them unseen."""
        self._call(key)

    def watch_all(self) -> None:
        """Watch all running calls: one of them has made calls in a thread of its own."""
        for task in running_tasks(self._worker):
            self.watch(task.key)

    def lend(self, key: Any) -> None:
        """Let other calls begin in the slot of a call that waits."""
        call = self._call(key)
        if call is not None:
            self._offer(call, seen=True)

    async def take_back(self, key: Any) -> None:
        """Wait until a call that has stopped waiting has a slot again.

        A call that comes back gets a free slot before calls that have not begun.

        Parameters
        ----------
        key
            Key of the call's Dask task.
        """
        call = self._calls.get(key)
        if call is None:
            return
        self._withdraw(call)
        if call.lent:
            self._claim(call)
        if call.has_thread:  # other calls may have begun in its slot
            await self._return(call)
        call.cpu_s, call.still_s = None, 0.0

    async def _return(self, call: _Call) -> None:
        """Wait until a call that has stopped waiting has a slot."""
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
        """Forget a call that has ended."""
        call = self._calls.pop(key, None)
        if call is None:
            return
        self._withdraw(call)
        if call.lent:
            self._claim(call)
        if call in self._returning:
            self._returning.remove(call)
        self._remove_thread(call)

    def _call(self, key: Any) -> _Call | None:
        """Return the record of a call, which is watched from now on; None if it does not run."""
        task = task_of(self._worker, key)
        if task is None or not is_running(self._worker, task):
            return None
        if not self._watches:
            self._watches, self._watched_at = True, time.monotonic()
            self.loop.call_later(WATCH_S, self._watch)
        return self._calls.setdefault(key, _Call(task))

    # Lending ------------------------------------------------------------------------------------

    def _offer(self, call: _Call, *, seen: bool) -> None:
        """Lend the slot of a call that waits, now, or as soon as a nested call needs a slot."""
        call.seen = seen
        if call.lent or call.offered:
            return
        if self._may_lend():
            self._lend(call)
            return
        call.offered = True
        self._offered.append(call)
        if not self._looks:
            self._looks = True
            self.loop.call_later(LOOK_S, self._look)

    def _may_lend(self) -> bool:
        """Return whether a slot may be lent to whichever call is next.

        Calls that wait keep their memory. Therefore only nested calls get every slot at once:
        they are what waiting calls wait for.
        """
        waiting = sum(call.lent for call in self._calls.values())
        if waiting < WAITING_PER_SLOT * self._worker.state.nthreads:
            return True
        if nested_call_is_next(self._worker):
            return True
        is_full = self._used_memory() > MEMORY_SHARE
        pause = LEND_FULL_EVERY_S if is_full else LEND_EVERY_S
        return time.monotonic() - self._lent_at > pause

    def _look(self) -> None:
        """Lend the slots that are offered, as far as that is allowed."""
        while self._offered and self._may_lend():
            call = self._offered[0]
            self._withdraw(call)
            self._lend(call)
        self._looks = bool(self._offered)
        if self._looks:
            self.loop.call_later(LOOK_S, self._look)

    def _withdraw(self, call: _Call) -> None:
        if call.offered:
            call.offered = False
            self._offered.remove(call)

    def _lend(self, call: _Call) -> None:
        logger.debug("the slot of %s is lent", call.task.key)
        call.lent, self._lent_at = True, time.monotonic()
        change_free_resources(self._worker, call.task, 1)
        self._let_begin(call)

    def _let_begin(self, call: _Call) -> None:
        """Have the worker begin the calls for which there is room beside a call."""
        if not call.has_thread:
            call.has_thread = True
            add_threads(self._worker, 1)
        stop_counting(self._worker, call.task)

    def _claim(self, call: _Call) -> None:
        """Count the slot of a call as taken again.

        The free resources become negative while other calls use the slot; no call begins then.
        """
        call.lent = False
        change_free_resources(self._worker, call.task, -1)

    def _has_turn(self, call: _Call) -> bool:
        """Return whether a call that has stopped waiting has a slot.

        The free resources are negative while more calls run than there are slots: each call that
        returns has claimed its slot already.
        """
        behind = self._returning[self._returning.index(call) + 1 :]
        free = free_resources(self._worker)
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
        """Check the threads of the calls that may wait unseen."""
        now = time.monotonic()
        elapsed, self._watched_at = now - self._watched_at, now
        for call in list(self._calls.values()):
            if call not in self._returning and not (call.seen and self.lends(call.task.key)):
                self._check(call, elapsed)
        self._watches = bool(self._calls)
        if self._watches:
            self.loop.call_later(WATCH_S, self._watch)

    def _check(self, call: _Call, elapsed: float) -> None:
        """Lend the slot of an idle call; claim the slot of a call that has become busy again."""
        before, call.cpu_s = call.cpu_s, cpu_seconds(self._worker, call.task.key)
        if call.cpu_s is None or before is None:
            is_busy = False
        else:
            is_busy = call.cpu_s - before > BUSY_SHARE * elapsed
        if is_busy:
            call.still_s = min(call.still_s, 0.0) - elapsed
            self._withdraw(call)
            if call.lent:
                logger.debug("%s no longer waits", call.task.key)
                self._claim(call)
            elif call.still_s < -BUSY_WAIT_S and nested_call_is_next(self._worker):
                logger.debug("a nested call begins beside %s, which is busy", call.task.key)
                change_free_resources(self._worker, call.task, 1)
                self._let_begin(call)
                change_free_resources(self._worker, call.task, -1)
        elif not (call.lent or call.offered):
            call.still_s = max(call.still_s, 0.0) + elapsed
            if call.still_s >= UNSEEN_WAIT_S:
                self._offer(call, seen=False)
