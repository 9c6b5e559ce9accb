"""Reasons for lost units, and signs of failing starts, from the last output of their workers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping

from scalable.errors import ProviderError
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Loss, Phase, Unit
from scalable.protocol.events import SILENT_SCHEDULER, Event, failed_start
from scalable.protocol.failures import without_dask
from scalable.units import as_written

logger = logging.getLogger("scalable.manager")

#: Seconds that a backend may take to return a unit's output.
LOG_TIMEOUT_S = 5.0
#: Number of output lines in the message about a loss.
SHOWN_LINES = 5
#: Part of the lines that Dask logs about a worker whose memory is nearly used up.
_DASK_ON_MEMORY = " - distributed.worker.memory - "
#: String between a reason and the last lines of the output.
OUTPUT = "; its last output:"
#: Matches last lines that explain an exit. Other lines are ordinary output.
_REASON = re.compile(
    r"[\w.]*(error|exception|exit|interrupt)\b"
    r"|.*\b(error|fatal|out of memory|killed|denied|not found|no such|cannot|failed)\b",
    re.IGNORECASE,
)


async def output_of(pool: Pool, name: UnitName) -> str:
    """Return the last output of a unit, or an empty string if it cannot be read in time."""
    try:
        return await asyncio.wait_for(pool.launcher.logs(name), LOG_TIMEOUT_S)
    except (ProviderError, OSError) as error:  # TimeoutError is an OSError
        logger.debug("the output of worker %s cannot be read: %r", name, error)
        return ""


async def reason_for(pool: Pool, name: UnitName, loss: Loss) -> str:
    """Return the reason for a loss, followed by the last lines of the unit's output."""
    if loss.from_outside:
        return loss.reason
    output = await output_of(pool, name)
    return explained(loss.reason, output, pool.tag, pool.shape.get("memory"))


def explained(reason: str, output: str, tag: str, memory: str | int | None) -> str:
    """Return a readable reason for a loss, followed by the last lines of ``output``.
    ``memory`` is one worker's memory as a string or in bytes, or None if unknown.
    """
    # Dask's entries name its internals, suggest leaks, and link to pages about its settings.
    own = [line for line in without_dask(output).splitlines() if line.strip()]
    if _DASK_ON_MEMORY in output and "memory" not in reason:
        reason = f"{reason}, when its memory was nearly used up"
    if memory and "memory" in reason and "limit" not in reason:
        amount = as_written(memory) if isinstance(memory, int) else memory
        whose = f"memory of component {tag!r}" if tag else "memory of a worker without a tag"
        reason = f"{reason} ({whose}: {amount})"
    tail = own[-SHOWN_LINES:]
    if not tail:
        return reason
    last = tail[-1].strip()
    cause = f": {last}" if _REASON.match(last) else f", after it had printed {last!r}"
    return f"{reason}{cause}{OUTPUT}\n  " + "\n  ".join(tail)


def note_reason(
    pool: Pool, unit: Unit, explanation: str, on_event: Callable[[Event], None], *, failed: bool
) -> None:
    """Store and log why a unit was lost, and publish the reason of a ``failed`` start once."""
    reason = explanation.partition(OUTPUT)[0]
    known = failed and pool.start_failure == reason
    logger.warning("worker %s was lost: %s", unit.name, "as the last one" if known else explanation)
    unit.leaving = f"lost: {reason}"
    if (pool.last_loss or "").startswith(f"{unit.name}: "):
        pool.last_loss = f"{unit.name}: {reason}"
    if failed and not known:
        before, pool.start_failure = pool.start_failure or "", reason
        # Otherwise clients were notified while the unit ran.
        if not (SILENT_SCHEDULER in before and SILENT_SCHEDULER in reason):
            on_event(failed_start(pool.tag, str(unit.name), reason))


# Silent starts ------------------------------------------------------------------------------------

#: Seconds for which a unit runs without connecting before its output is read.
SILENT_S = 12.0
#: Seconds between two reads of the output of a pool's units. One read takes less.
AGAIN_S = LOG_TIMEOUT_S


def silent_starts(
    units: Iterable[Unit], pools: Mapping[str, Pool], now: float
) -> list[tuple[Pool, Unit]]:
    """Return running units that do not connect and whose output is to be read now, with pools."""
    found = []
    for unit in units:
        pool, since = pools[unit.pool], unit.running_since
        silent = unit.phase is Phase.LAUNCHING and unit.connected_at is None
        if not silent or since is None or now - since < SILENT_S or pool.start_failure:
            continue
        if now >= pool.read_at:
            pool.read_at = now + AGAIN_S
            found.append((pool, unit))
    return found


async def find_silence(pool: Pool, unit: Unit, on_event: Callable[[Event], None]) -> None:
    """Publish that a unit's scheduler does not answer, if the unit's output shows this."""
    output = await output_of(pool, unit.name)
    said = [line.strip() for line in output.splitlines() if line.startswith(SILENT_SCHEDULER)]
    if said and unit.connected_at is None and pool.start_failure is None:
        logger.warning("worker %s runs but does not connect: %s", unit.name, said[-1])
        pool.start_failure = said[-1]
        on_event(failed_start(pool.tag, str(unit.name), said[-1]))
