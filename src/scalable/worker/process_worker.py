"""A Dask worker in its own process, which is replaced if an interrupted task does not stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
from contextlib import suppress
from typing import Any

from scalable.protocol.handlers import SchedulerCalls
from scalable.worker.memory import MemoryWatch
from scalable.worker.pool_worker import PoolWorker, ThreadUsage

logger = logging.getLogger("scalable.worker")

#: Largest time in seconds for the report that the memory is used up, while its use continues.
TELL_TIMEOUT_S = 0.5


class ProcessWorker(PoolWorker):
    """Worker that has a process to itself.

    On a worker with one slot, the CPU seconds of a task include the whole process and the finished
    child processes. With several slots, they include only the task's thread. Peak memory is the
    larger of the process's high-water mark and of samples, every 0.2 s, that include child
    processes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memory_watch = MemoryWatch(self.memory_manager.memory_limit, self._tell_of_memory)
        self.memory_watch.start()

    def _begin(self) -> ThreadUsage:
        return _ProcessUsage(self.memory_watch, alone=self.state.nthreads == 1)

    def peak_memory(self) -> int | None:
        return self.memory_watch.end()

    def _tell_of_memory(self, used: int) -> None:
        """Report to the scheduler why this process exits now. Runs in another thread."""
        loop: Any = self.loop
        telling = asyncio.run_coroutine_threadsafe(self._report_memory(used), loop.asyncio_loop)
        with suppress(OSError, TimeoutError, concurrent.futures.CancelledError):
            telling.result(TELL_TIMEOUT_S)

    async def _report_memory(self, used: int) -> None:
        keys = [task.key for task in self.state.executing]
        limit = self.memory_manager.memory_limit or 0
        await SchedulerCalls(self.scheduler).out_of_memory(self.address, keys, used, limit)

    def give_up_on_call(self, key: Any, shown: str) -> None:
        """Request the replacement of this worker, because an interrupted task does not stop.

        The scheduler drains the worker: no more tasks start, all other tasks finish, including
        those that wait for nested tasks, and results are moved to other workers.
        """
        self.loop.add_callback(self._give_up_on_call, key, shown)

    async def _give_up_on_call(self, key: Any, shown: str) -> None:
        logger.warning(
            "a call of %s was interrupted and does not end: this worker is replaced", shown
        )
        await SchedulerCalls(self.scheduler).give_up(self.address, key)
        # Tasks that stop waiting need a slot, and this one would never be free again.
        self.slot_lender.lend(key)


class _ProcessUsage(ThreadUsage):
    """CPU seconds and peak memory of the process during one task."""

    def __init__(self, watch: MemoryWatch, *, alone: bool) -> None:
        super().__init__()
        self._watch = watch
        self._began = _process_cpu_s() if alone else None
        watch.begin(reset=alone)

    def end(self) -> dict[str, float | int | None]:
        cpu_s = self._cpu_s if self._began is None else _process_cpu_s() - self._began
        return {"cpu_s": cpu_s, "peak_memory": self._watch.end()}


def _process_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
