"""Units that run and do not connect: their output is reported before they are stopped."""

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
#: Seconds between two reads of the output of a pool's units.
AGAIN_S = 4.0


class SilentStarts:
    """Finds workers whose output reports that their scheduler does not answer."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._looked_at: dict[str, float] = {}

    def look(self, units: Iterable[Unit], pools: Mapping[str, Pool], now: float) -> None:
        """Start reading the output of silent units. Needs a running event loop."""
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
        for task in self._looking.values():
            task.cancel()
