"""Lending of slots: a call that waits for nested calls lets other calls use its slot.

A *slot* is room for one call on a worker. Dask's ``secede`` releases the thread of a waiting call,
but not the call's resources: on a pool of one slot, a tagged call would wait forever for another
call of its tag.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from distributed import Worker
from distributed.worker_state_machine import TaskState

from scalable.protocol.dask_seams.worker import (
    add_threads,
    change_free_resources,
    free_resources,
    is_running,
    seams,
    stop_counting,
    task_of,
)

logger = logging.getLogger("scalable.worker")

#: Seconds after which the slot of a call that submitted other calls is lent even if no wait was
#: noticed: the call may wait in another way (``as_completed``, an event).
UNSEEN_WAIT_S = 1.0
#: Seconds between two checks for a free slot.
LOOK_S = 0.01


class SlotLender:
    """Lends the slots of waiting calls on one worker. Runs in the worker's event loop.

    Parameters
    ----------
    worker
        Worker whose slots are lent.
    """

    def __init__(self, worker: Worker) -> None:
        seams.check()
        self._worker = worker
        self._lent: set[Any] = set()
        self._watched: set[Any] = set()
        #: Calls whose slot was lent although no wait was noticed; it may be lent again.
        self._unseen: set[Any] = set()
        #: Calls that need their slot again, in the order in which their waits ended.
        self._returning: list[TaskState] = []

    @property
    def loop(self) -> Any:
        """Event loop of the worker."""
        return self._worker.loop

    def lends(self, key: Any) -> bool:
        """Return whether the slot of a call is lent."""
        return key in self._lent

    def lend_later(self, key: Any, since: float) -> None:
        """Lend the slot of a call that submitted other calls, if it runs for another second.

        Parameters
        ----------
        key
            Key of the call's Dask task.
        since
            Start of the call, in seconds since 1970.
        """
        if key not in self._watched:
            self._watched.add(key)
            seconds = time.time() - since + UNSEEN_WAIT_S
            self.loop.call_later(UNSEEN_WAIT_S, self._lend_watched, key, seconds)

    def _lend_watched(self, key: Any, seconds: float) -> None:
        if key in self._watched:
            self._watched.discard(key)
            self._unseen.add(key)
            self.lend(key, seconds)

    def lend(self, key: Any, seconds: float) -> None:
        """Let other calls begin in the slot of a call that waits.

        Parameters
        ----------
        key
            Key of the call's Dask task.
        seconds
            Time for which the call has run.
        """
        task = task_of(self._worker, key)
        if task is None or key in self._lent or not is_running(task):
            return
        logger.debug("the slot of %s is lent after %.3f s", key, seconds)
        self._lent.add(key)
        change_free_resources(self._worker, task, 1)
        add_threads(self._worker, 1)
        stop_counting(self._worker, task, seconds)

    async def take_back(self, key: Any) -> None:
        """Wait until a call that has stopped waiting has a slot again.

        A call that comes back gets a free slot before calls that have not begun.

        Parameters
        ----------
        key
            Key of the call's Dask task.
        """
        task = task_of(self._worker, key)
        if not self.settle(key) or task is None:
            return
        self._returning.append(task)
        add_threads(self._worker, 1)  # its thread is taken until the call goes on
        try:
            while not self._has_turn(task):  # noqa: ASYNC110 - Dask has no event for free resources
                await asyncio.sleep(LOOK_S)
        finally:
            self._returning.remove(task)
            add_threads(self._worker, -1)
        logger.debug("%s has a slot again", key)
        if key in self._unseen:
            self.lend_later(key, time.time())

    def _has_turn(self, task: TaskState) -> bool:
        """Return whether a call that has stopped waiting has a slot.

        The free resources are negative while more calls run than there are slots: each call that
        returns has claimed its slot already.
        """
        behind = self._returning[self._returning.index(task) + 1 :]
        free = free_resources(self._worker)
        return all(
            free[name] + sum((other.resource_restrictions or {}).get(name, 0) for other in behind)
            >= 0
            for name in task.resource_restrictions or ()
        )

    def ended(self, key: Any) -> None:
        """Forget a call that has ended."""
        self._unseen.discard(key)
        self.settle(key)

    def settle(self, key: Any) -> bool:
        """Count the slot of a call as taken again, and return whether it was lent."""
        self._watched.discard(key)
        if key not in self._lent:
            return False
        self._lent.discard(key)
        add_threads(self._worker, -1)
        task = task_of(self._worker, key)
        if task is not None:
            change_free_resources(self._worker, task, -1)
        return True
