"""Garbage collection in the program of a scheduler, which holds the event loop."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Mapping

logger = logging.getLogger("scalable.scheduler")

#: Seconds of a full collection after which what it has seen is left out of the next ones.
LONG_S = 0.05
#: Largest share of the time for collections that see everything.
SHARE = 1 / 3000


class ShortCollections:
    """Full collections that see only what is new, and now and then everything.

    A full collection looks at every object, about a million in a second: for 2 to 4 s where 5,000
    workers are connected, and again whenever there are a quarter more. Here the survivors of a long
    collection are left out of the next ones (``gc.freeze()``). Garbage among them is found by a
    collection that sees everything; it comes once ``1 / SHARE`` times as much time has passed as
    the last one took. Objects without cycles are freed at once all the same.
    """

    def __init__(self) -> None:
        self._began = self._whole_at = time.monotonic()
        self._whole_s = 0.0
        self._sees_all = True

    def begin(self) -> None:
        """Leave out what is loaded by now, and collect a third as often, as Dask's program does."""
        gc.set_threshold(*(3 * each for each in gc.get_threshold()))
        gc.callbacks.append(self.collects)
        gc.collect()
        gc.freeze()

    def collects(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the start or the end of a collection; Python calls this."""
        if info["generation"] != 2:
            return
        now = time.monotonic()
        if phase == "start":
            if self._whole_s and now - self._whole_at >= self._whole_s / SHARE:
                self._sees_all = True
                gc.unfreeze()
            self._began = time.monotonic()
            return
        took_s = now - self._began
        if self._sees_all:
            self._sees_all, self._whole_at, self._whole_s = False, now, took_s
        elif took_s < LONG_S:
            return
        gc.freeze()
        logger.debug(
            "a full collection took %.3f s; %d objects are left out now",
            took_s,
            gc.get_freeze_count(),
        )
