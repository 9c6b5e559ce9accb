"""Reading of the frames of all threads without the danger of a deadlock."""

from __future__ import annotations

import gc
import sys
import threading
from functools import wraps
from typing import Any

_reading = threading.Lock()


def read_frames_without_collection() -> None:
    """Make ``sys._current_frames`` collect no garbage; needed once in a process.

    Dask calls it every few milliseconds for its profiles. Meanwhile Python before 3.13 holds a lock
    without which no thread can end. A garbage collection at this moment may run Python code, as
    Dask's callback of the collector. Then another thread may run and end, and waits for the lock
    with Python's global lock in its hands: the process hangs for ever.
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
