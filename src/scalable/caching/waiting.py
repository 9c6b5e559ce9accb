"""Waiting for a result that another process computes."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalable.caching.outcomes import Waited

#: Seconds between the first two checks.
FIRST_S = 0.02
#: Factor by which the intervals grow.
LONGER = 1.5
#: Largest number of seconds between two checks.
LAST_S = 2.0


def wait(
    *,
    is_free: Callable[[], bool],
    exists: Callable[[], bool],
    cancelled: Callable[[], bool],
    timeout_s: float | None,
) -> Waited:
    """Block until a result exists, or no process computes it, or the caller cancels the wait."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    pause = FIRST_S
    while True:
        # Checked first, since a process stores its result before it releases the lease.
        was_free = is_free()
        if exists():
            return Waited.STORED
        if was_free:
            return Waited.FREE
        if cancelled():
            return Waited.CANCELLED
        left = LAST_S if end is None else end - time.monotonic()
        if left <= 0:
            return Waited.LATE
        time.sleep(min(pause, left))
        pause = min(pause * LONGER, LAST_S)
