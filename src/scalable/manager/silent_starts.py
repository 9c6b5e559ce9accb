"""Units that run and do not connect: what their output says is shown before they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from scalable.errors import ProviderError
from scalable.manager.losses import LOG_TIMEOUT_S
from scalable.manager.pools import Pool
from scalable.manager.units import Phase, Unit
from scalable.protocol.events import SILENT_SCHEDULER, Event, failed_start

logger = logging.getLogger("scalable.manager")

#: Seconds for which a unit runs without connecting before its output is read.
SILENT_S = 12.0
#: Seconds between two looks at the output of units of one pool.
AGAIN_S = 4.0


class SilentStarts:
    """Looks for workers that write that their scheduler does not answer.

    Parameters
    ----------
    on_event
        Function that receives the event for clients.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._looked_at: dict[str, float] = {}

    def look(self, units: Iterable[Unit], pools: Mapping[str, Pool], now: float) -> None:
        """Begin to read the output of units that are silent; needs a running event loop.

        Parameters
        ----------
        units
            Existing units.
        pools
            Tag -> pool.
        now
            Present time in monotonic seconds.
        """
        for unit in units:
            pool = pools[unit.pool]
            since, tag = unit.running_since, pool.tag
            silent = unit.phase is Phase.LAUNCHING and unit.connected_at is None
            if not silent or since is None or now - since < SILENT_S or pool.start_failure:
                continue
            if tag in self._looking or now - self._looked_at.get(tag, -AGAIN_S) < AGAIN_S:
                continue
            self._looked_at[tag] = now
            self._looking[tag] = asyncio.ensure_future(self._read(unit, pool))

    async def _read(self, unit: Unit, pool: Pool) -> None:
        try:
            await self._show(unit, pool)
        finally:
            del self._looking[pool.tag]

    async def _show(self, unit: Unit, pool: Pool) -> None:
        try:
            text = await asyncio.wait_for(pool.launcher.logs(unit.name), LOG_TIMEOUT_S)
        except (ProviderError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("the output of worker %s cannot be read: %r", unit.name, error)
            return
        said = [line.strip() for line in text.splitlines() if line.startswith(SILENT_SCHEDULER)]
        if said and unit.connected_at is None and pool.start_failure is None:
            logger.warning("worker %s runs and does not connect: %s", unit.name, said[-1])
            pool.start_failure = said[-1]
            self._on_event(failed_start(pool.tag, str(unit.name), said[-1]))

    def close(self) -> None:
        """Stop looking."""
        for task in self._looking.values():
            task.cancel()
