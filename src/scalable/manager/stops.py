"""Stops of units in the background; the names of the units stay taken meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from scalable.errors import ProviderError
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool

logger = logging.getLogger("scalable.manager")


class Stops:
    """Requests to stop units that run beside the passes of the reconciler.

    Parameters
    ----------
    on_stopped
        Called after each stop.
    """

    def __init__(self, on_stopped: Callable[[], None]) -> None:
        self.names: set[UnitName] = set()
        self._on_stopped = on_stopped
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, pool: Pool, names: Sequence[UnitName]) -> None:
        """Ask a pool's launcher to stop some units; needs a running event loop."""
        self.names.update(names)
        task = asyncio.ensure_future(self._stop(pool, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, pool: Pool, names: Sequence[UnitName]) -> None:
        try:
            await pool.launcher.stop(list(names))
            logger.debug("pool %r: units %s are stopped", pool.tag, names)
        except ProviderError as error:
            logger.warning("units %s could not be stopped: %s", list(names), error)
        finally:
            self.names.difference_update(names)
            self._on_stopped()

    async def finish(self) -> None:
        """Wait until all requests have ended."""
        while self._tasks:
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
            for error in filter(None, done):
                logger.error("a request to stop units failed", exc_info=error)
