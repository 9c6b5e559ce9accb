"""Garbage collection in the program of a scheduler, which holds the event loop."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Mapping

logger = logging.getLogger("scalable.scheduler")

#: Largest share of the time for full collections.
SHARE = 1 / 2000
#: Number of collections of younger objects between two full ones, while none is due.
NEVER = 10**9


class SeldomCollections:
    """Full collections that take a small share of the time, however many objects there are.

    A full collection looks at every object, at about half a million in a second: for 2 s where
    5,000 workers are connected. Python begins one whenever there are a quarter more objects. Here
    the next one waits for ``1 / SHARE`` times as long as the last one took. Objects without cycles
    are freed at once all the same, and young ones with cycles are collected as before.
    """

    def __init__(self) -> None:
        first, second, self._third = (3 * each for each in gc.get_threshold())
        self._younger = first, second
        self._began = self._due_at = 0.0

    def begin(self) -> None:
        """Leave out what is loaded by now, and collect a third as often, as Dask's program does.

        The modules alone take a full collection 0.1 s and more.
        """
        gc.set_threshold(*self._younger, self._third)
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.collects)

    def collects(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the start or the end of a collection; Python calls this."""
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
