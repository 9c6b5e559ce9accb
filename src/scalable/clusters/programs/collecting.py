"""Garbage collection in the scheduler's program, where it blocks the event loop."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Mapping

logger = logging.getLogger("scalable.scheduler")

#: Maximum share of the time for full collections.
SHARE = 1 / 2000
#: Number of collections of younger objects between two full ones, while none is due.
NEVER = 10**9


class SeldomCollections:
    """Full collections that take a small share of the time, however many objects there are.
    A full collection visits every object, half a million per second: 2 s with 5,000 workers. Python
    starts one whenever there are a quarter more objects. Here the next one waits for ``1 / SHARE``
    times the duration of the last. Objects without cycles are still freed at once.
    """

    def __init__(self) -> None:
        first, second, self._third = (3 * each for each in gc.get_threshold())
        self._younger = first, second
        self._began = self._due_at = 0.0

    def begin(self) -> None:
        """Exclude what is loaded by now, and collect a third as often, as Dask's program does.
        The modules alone make a full collection at least 0.1 s longer.
        """
        gc.set_threshold(*self._younger, self._third)
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.collects)

    def collects(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the start or the stop of a collection. Python calls this."""
        now = time.monotonic()
        if info["generation"] != 2:
            if phase == "stop" and now >= self._due_at:
                gc.set_threshold(*self._younger, self._third)
        elif phase == "start":
            self._began = now
        else:
            took_s = now - self._began
            self._due_at = now + took_s / SHARE
            gc.set_threshold(*self._younger, NEVER)
            logger.debug("a full collection took %.3f s", took_s)
