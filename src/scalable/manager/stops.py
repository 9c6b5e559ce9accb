"""Requests to stop units, which run in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from scalable.errors import ProviderError
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool

logger = logging.getLogger("scalable.manager")

#: Seconds before a stop is repeated on a backend that did not answer. They double.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: Seconds after which stops are not repeated on a backend that does not answer.
GIVE_UP_S = 3600.0


class Stops:
    """The requests to stop units, which run in the background. ``on_stopped`` is called after each.
    No new unit gets the name of a unit that is being stopped (``names``). A stop is repeated if a
    backend does not answer, because its units would otherwise cost money until the cluster stops.
    """

    def __init__(self, on_stopped: Callable[[], None]) -> None:
        self.names: set[UnitName] = set()
        self._on_stopped = on_stopped
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing: asyncio.Event | None = None

    def begin(self, pool: Pool, names: Sequence[UnitName]) -> None:
        """Stop units of a pool in the background. Needs a running event loop."""
        self.names.update(names)
        task = asyncio.ensure_future(self._stop(pool, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, pool: Pool, names: Sequence[UnitName]) -> None:
        deadline, pause_s = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S
        try:
            while not await self._is_stopped(pool, names):
                if self._is_finishing() or time.monotonic() > deadline:
                    logger.error("pool %r: units %s may still run", pool.tag, list(names))
                    return
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self.names.difference_update(names)
            self._on_stopped()

    async def _is_stopped(self, pool: Pool, names: Sequence[UnitName]) -> bool:
        """Stop units. Return False if another attempt may succeed."""
        try:
            await pool.launcher.stop(list(names))
        except ProviderError as error:
            logger.warning("units %s could not be stopped: %s", list(names), error)
            return not error.transient
        logger.debug("pool %r: units %s are stopped", pool.tag, names)
        return True

    def _is_finishing(self) -> bool:
        return self._finishing is not None and self._finishing.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not after :meth:`finish` was called."""
        self._finishing = self._finishing or asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._finishing.wait(), seconds)

    async def finish(self) -> None:
        """Wait until all requests have made their last attempt. Log unexpected errors."""
        self._finishing = self._finishing or asyncio.Event()
        self._finishing.set()
        while self._tasks:
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
            for error in filter(None, done):
                logger.error("a request to stop units failed", exc_info=error)
