"""Calls that wait for calls of their own: their slot is lent to others meanwhile.

Dask's ``secede`` gives the thread of such a call back, but not the resources that it holds, so that
a tagged call which waits for another of its tag would wait for ever on a pool of one slot.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from distributed import Worker
from distributed.worker_state_machine import SecedeEvent, TaskState, UnpauseEvent

#: A call that made others and still runs after so many seconds may wait for them in a way that
#: cannot be seen (``as_completed``, an event): its slot is lent as well.
UNSEEN_WAIT_S = 1.0
#: Looks for a free slot are so far apart.
LOOK_S = 0.01


class SlotLender:
    """Lends the slots of waiting calls on one worker. Runs in the worker's event loop.

    Parameters
    ----------
    worker
        Whose slots these are.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lent: set[Any] = set()
        self._watched: set[Any] = set()
        #: Calls that wait in a way that cannot be seen; they may do so again.
        self._unseen: set[Any] = set()
        #: In the order in which their waiting has ended.
        self._returning: list[TaskState] = []

    @property
    def loop(self) -> Any:
        """The worker's event loop."""
        return self._worker.loop

    def lends(self, key: Any) -> bool:
        """Whether a call waits for others."""
        return key in self._lent

    def lend_later(self, key: Any, since: float) -> None:
        """Lend the slot of a call that made others, if it still runs after a while."""
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
        """Let other calls begin in the place of one that waits, after it ran for some seconds."""
        state = self._worker.state
        task = state.tasks.get(key)
        if task is None or key in self._lent or task.state not in ("executing", "long-running"):
            return
        self._lent.add(key)
        self._change(task, 1)
        self._widen(1)
        stamp = f"call-waits-{time.time()}"
        if task.state == "executing":
            event: Any = SecedeEvent(key=key, compute_duration=seconds, stimulus_id=stamp)
        elif state.running:
            event = UnpauseEvent(stimulus_id=stamp)  # what waits may begin
        else:
            return
        self._worker.handle_stimulus(event)

    async def take_back(self, key: Any) -> None:
        """Wait until a call that waits no more has a slot again, before any that has not begun."""
        task = self._worker.state.tasks.get(key)
        if not self.settle(key) or task is None:
            return
        self._returning.append(task)
        try:
            while not self._has_turn(task):  # noqa: ASYNC110 - what it waits for tells nobody
                await asyncio.sleep(LOOK_S)
        finally:
            self._returning.remove(task)
        if key in self._unseen:
            self.lend_later(key, time.time())

    def _has_turn(self, task: TaskState) -> bool:
        """Whether a call that waits no more has a slot: all that return have claimed theirs."""
        behind = self._returning[self._returning.index(task) + 1 :]
        free = self._worker.state.available_resources
        return all(
            free[name] + sum((other.resource_restrictions or {}).get(name, 0) for other in behind)
            >= 0
            for name in task.resource_restrictions or ()
        )

    def ended(self, key: Any) -> None:
        """A call has ended: its slot is its worker's to give."""
        self._unseen.discard(key)
        self.settle(key)

    def settle(self, key: Any) -> bool:
        """Count a call's slot as taken again. Whether it was lent."""
        self._watched.discard(key)
        if key not in self._lent:
            return False
        self._lent.discard(key)
        self._widen(-1)
        task = self._worker.state.tasks.get(key)
        if task is not None:
            self._change(task, -1)
        return True

    def _change(self, task: TaskState, sign: int) -> None:
        free = self._worker.state.available_resources
        for name, amount in (task.resource_restrictions or {}).items():
            free[name] += sign * amount

    def _widen(self, threads: int) -> None:
        """The waiting thread stays in its pool, which gets another one."""
        self._worker.executors["default"]._max_workers += threads  # type: ignore[attr-defined]  # noqa: SLF001
