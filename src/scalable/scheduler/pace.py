"""Long computations in the scheduler's process, in short turns of the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Final

#: Duration of a turn. The scheduler's own turn for a task takes about a millisecond.
TURN_S: Final = 0.005


class Pace:
    """Interrupts a computation in the event loop after each turn of ``turn_s`` seconds.
    The data that the computation reads may change at each interruption.
    """

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._began = time.monotonic()

    async def give_way(self) -> None:
        if time.monotonic() - self._began >= self._turn_s:
            await asyncio.sleep(0)
            self._began = time.monotonic()
