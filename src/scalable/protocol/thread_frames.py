"""Reading the frames of all threads without the risk of a deadlock."""

from __future__ import annotations

import gc
import sys
import threading
from functools import wraps
from typing import Any

_reading = threading.Lock()


def read_frames_without_collection() -> None:
    """Make ``sys._current_frames`` collect no garbage. Idempotent.

    Dask calls it every few milliseconds for its profiles. Python before 3.13 holds a lock during it
    that a thread needs to exit. A garbage collection at this moment may run Python code, such as
    Dask's callback of the collector. Then another thread may run and exit, waiting for the lock
    while it holds the global interpreter lock: the process hangs for ever.
    """
    read = sys._current_frames  # noqa: SLF001 - public but for its name
    if sys.version_info >= (3, 13) or getattr(read, "collects_nothing", False):
        return

    @wraps(read)
    def frames() -> dict[int, Any]:
        with _reading:
            collects = gc.isenabled()
            gc.disable()
            try:
                return read()
            finally:
                if collects:
                    gc.enable()

    frames.collects_nothing = True  # type: ignore[attr-defined]
    sys._current_frames = frames  # noqa: SLF001
