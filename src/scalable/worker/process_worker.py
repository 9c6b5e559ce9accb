"""A Dask worker in its own process, which is replaced if an interrupted task does not stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from scalable.protocol.handlers import Handler, request
from scalable.protocol.operations import OUT_OF_MEMORY
from scalable.units import as_written, like
from scalable.worker.pool_worker import PoolWorker, ThreadUsage
from scalable.worker.task_output import OutputSender

logger = logging.getLogger("scalable.worker")

#: Longest time in seconds for reporting that memory is used up, while its use still grows.
TELL_TIMEOUT_S = 0.5


class ProcessWorker(PoolWorker):
    """Worker that has a process to itself.
    With one slot, a task's CPU seconds include the whole process and its finished children. Peak
    memory includes children, sampled every 0.2 s.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memory_watch = MemoryWatch(self.memory_manager.memory_limit, self._tell_of_memory)
        self.memory_watch.start()

    def send_output(self) -> None:
        """Start to send the output of tasks to the clients that show it."""
        if self.output is None:
            self.output = OutputSender(self)

    def _begin(self) -> ThreadUsage:
        return _ProcessUsage(self.memory_watch, alone=self.state.nthreads == 1)

    def peak_memory(self) -> int | None:
        return self.memory_watch.end()

    def _tell_of_memory(self, used: int) -> None:
        """Report to the scheduler why this process is about to exit. Runs in another thread."""
        loop: Any = self.loop
        telling = asyncio.run_coroutine_threadsafe(self._report_memory(used), loop.asyncio_loop)
        with suppress(OSError, TimeoutError, concurrent.futures.CancelledError):
            telling.result(TELL_TIMEOUT_S)

    async def _report_memory(self, used: int) -> None:
        keys = [task.key for task in self.state.executing]
        limit = self.memory_manager.memory_limit or 0
        facts = {"worker": self.address, "keys": keys, "used": used, "limit": limit}
        await request(self.scheduler, Handler.OUT_OF_MEMORY, **facts)

    def give_up_on_call(self, key: Any, shown: str) -> None:
        """Request the replacement of this worker, because an interrupted task does not stop."""
        self.loop.add_callback(self._give_up_on_call, key, shown)

    async def _give_up_on_call(self, key: Any, shown: str) -> None:
        logger.warning(
            "a task of %s was interrupted but does not stop: this worker is replaced", shown
        )
        await request(self.scheduler, Handler.GIVE_UP, worker=self.address, key=key)
        # Tasks that stop waiting need a slot, and this one would never be free again.
        self.slot_lender.lend(key)


class _ProcessUsage(ThreadUsage):
    """CPU seconds and peak memory of the process and its children during one task."""

    def __init__(self, watch: MemoryWatch, *, alone: bool) -> None:
        self._watch = watch
        self._began = sum(os.times()[:4]) if alone else None
        watch.begin(reset=alone)

    def end(self) -> dict[str, float | int | None]:
        cpu_s = self._cpu_s if self._began is None else sum(os.times()[:4]) - self._began
        return {"cpu_s": cpu_s, "peak_memory": self._watch.end()}


# Memory -------------------------------------------------------------------------------------------

MEMORY_INTERVAL_S = 0.2
#: Share of the limit at which a worker stops itself. Dask's nanny does the same at 0.95.
TERMINATE_FRACTION = 0.95


class MemoryWatch(threading.Thread):
    """Thread that samples the memory of this process and its children, and exits above a limit.
    Before that, it calls ``tell`` with the used bytes. ``tell`` must return in bounded time.
    """

    def __init__(self, limit: int | None, tell: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(name="scalable-memory-watch", daemon=True)
        self._limit, self._tell = limit, tell
        self._process = psutil.Process()
        self._sampled = 0

    def begin(self, *, reset: bool) -> None:
        """Start to measure a task's peak memory. Without ``reset``, earlier peaks are included."""
        if reset:
            self._sampled = 0
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def end(self) -> int | None:
        """Return the peak in bytes since :meth:`begin`, or None if it is unknown."""
        return max(_high_water_mark() or 0, self._sampled) or None

    def run(self) -> None:
        while True:
            time.sleep(MEMORY_INTERVAL_S)
            with suppress(psutil.Error, OSError):
                used = self._used()
                self._sampled = max(self._sampled, used)
                if self._limit and used > TERMINATE_FRACTION * self._limit:
                    self._terminate(used)

    def _used(self) -> int:
        used = int(self._process.memory_info().rss)
        for child in self._process.children(recursive=True) if _has_children() else ():
            with suppress(psutil.Error):
                used += int(child.memory_info().rss)
        return used

    def _terminate(self, used: int) -> None:
        assert self._limit is not None
        message = (
            f"out of memory: {like(self._limit, used)} used, the limit is "
            f"{as_written(self._limit)}; the worker exits\n"
        )
        os.write(2, message.encode())
        for child in self._process.children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        self._tell(used)
        os._exit(OUT_OF_MEMORY)


def _has_children() -> bool:
    # Reading each thread's list is much cheaper than psutil's walk through all of /proc.
    try:
        return any(p.read_text() for p in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True


def _high_water_mark() -> int | None:
    try:
        with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - on the path of each call
            for line in status:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
