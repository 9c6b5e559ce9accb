"""Memory of a worker process and its children: sampled, reported, and held to a limit."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from scalable.protocol.exit_codes import OUT_OF_MEMORY
from scalable.units import as_written, like

logger = logging.getLogger("scalable.worker")

MEMORY_INTERVAL_S = 0.2
#: Share of the limit at which a worker stops itself. Dask's nanny does the same at 0.95.
TERMINATE_FRACTION = 0.95


class MemoryWatch(threading.Thread):
    """Thread that samples the memory of this process and its children, and exits above a limit.

    ``tell`` is called with the used bytes before the exit, and must return in bounded time. Writing
    5 to ``/proc/self/clear_refs`` resets the high-water mark (VmHWM), see proc(5). Where that is
    not allowed, only the samples count.
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
            f"{as_written(self._limit)}; the worker ends itself\n"
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
