"""Requests to stop units, which run in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from scalable.errors import ProviderError
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool

logger = logging.getLogger("scalable.manager")


class Stops:
    """The requests to stop units that run in the background while the reconciler goes on.

    No new unit gets the name of a unit that is being stopped (see :attr:`names`).

    Parameters
    ----------
    on_stopped
        Function that is called when a request has ended.

    Attributes
    ----------
    names
        Names of the units that are being stopped.
    """

    def __init__(self, on_stopped: Callable[[], None]) -> None:
        self.names: set[UnitName] = set()
        self._on_stopped = on_stopped
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, pool: Pool, names: Sequence[UnitName]) -> None:
        """Stop units of a pool in the background; needs a running event loop."""
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
        """Wait until all requests have ended; log unexpected errors."""
        while self._tasks:
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
            for error in filter(None, done):
                logger.error("a request to stop units failed", exc_info=error)
