"""`Pace`: long computations beside the scheduler, in turns that others wait for unnoticed."""

from __future__ import annotations

import asyncio
import time
from typing import Final

#: Seconds of a turn. The scheduler's own turn for a call takes about a millisecond.
TURN_S: Final = 0.005


class Pace:
    """Interrupts a computation in the event loop whenever its turn has lasted long enough.

    What the computation reads may change at each interruption.

    Parameters
    ----------
    turn_s
        Seconds of a turn.
    """

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._began = time.monotonic()

    async def give_way(self) -> None:
        """Let others have their turn, if this one has lasted long enough."""
        if time.monotonic() - self._began >= self._turn_s:
            await asyncio.sleep(0)
            self._began = time.monotonic()
