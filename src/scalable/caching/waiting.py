"""Waiting for a result that somebody else computes."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalable.caching.outcomes import Waited

#: Seconds between the first two looks.
FIRST_S = 0.02
#: Factor by which the intervals grow.
LONGER = 1.5
#: Largest number of seconds between two looks.
LAST_S = 2.0


def wait(
    *,
    is_free: Callable[[], bool],
    exists: Callable[[], bool],
    cancelled: Callable[[], bool],
    timeout_s: float | None,
) -> Waited:
    """Wait until a result exists, or nobody computes it any more.

    Parameters
    ----------
    is_free
        Whether nobody computes the result.
    exists
        Whether the result is stored.
    cancelled
        Whether to give up.
    timeout_s
        Seconds after which to give up; None for never.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    pause = FIRST_S
    while True:
        # Asked first: whoever computes stores the result before giving the lease back.
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
