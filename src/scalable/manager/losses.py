"""Lost units: their last output is read in the background before they are stopped."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from scalable.errors import ProviderError
from scalable.manager.decisions import Loss
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Unit
from scalable.protocol.events import SILENT_SCHEDULER, Event, failed_start
from scalable.units import as_written

logger = logging.getLogger("scalable.manager")

#: Seconds that a backend may take to return a unit's output.
LOG_TIMEOUT_S = 5.0
#: Number of output lines in the message about a loss.
SHOWN_LINES = 5
#: Part of the lines that Dask logs about a worker whose memory is nearly used up.
_DASK_ON_MEMORY = " - distributed.worker.memory - "
_OUTPUT = "; its last output:"
#: Last lines that explain an exit. Other lines are ordinary output.
_REASON = re.compile(
    r"[\w.]*(error|exception|exit|interrupt)\b"
    r"|.*\b(error|fatal|out of memory|killed|denied|not found|no such|cannot|failed)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LostUnit:
    """A unit that was lost."""

    unit: Unit
    pool: Pool
    #: Whether the pool is given up because of this loss.
    gives_up: bool
    #: Whether the unit has ended. If not, it may still connect.
    ended: bool
    #: Whether the unit never connected, although it was not stopped from outside.
    failed_start: bool
    #: Returns the reason for the loss, with the unit's last output.
    task: asyncio.Task[str]


class Losses:
    """Lost units whose reason is still being read. Until then no new unit gets such a name."""

    def __init__(self, on_explained: Callable[[], None]) -> None:
        self._on_explained = on_explained
        self._lost: dict[UnitName, LostUnit] = {}

    @property
    def names(self) -> list[UnitName]:
        return list(self._lost)

    def __contains__(self, name: UnitName) -> bool:
        return name in self._lost

    def begin(self, pool: Pool, unit: Unit, loss: Loss, *, gives_up: bool) -> None:
        """Read the reason of a loss in the background. Needs a running event loop."""
        task = asyncio.get_running_loop().create_task(_explain(pool, unit.name, loss.reason))
        failed = unit.connected_at is None and not loss.from_outside
        self._lost[unit.name] = LostUnit(unit, pool, gives_up, loss.ended, failed, task)
        task.add_done_callback(lambda _: self._on_explained())

    def take_explained(self) -> list[LostUnit]:
        """Return the lost units whose reasons were found since the last call."""
        explained = [lost for lost in self._lost.values() if lost.task.done()]
        for lost in explained:
            del self._lost[lost.unit.name]
        return explained

    def abandon(self) -> list[Unit]:
        """Stop reading reasons. Return the lost units, which still have to be stopped."""
        units = [lost.unit for lost in self._lost.values()]
        for lost in self._lost.values():
            lost.task.cancel()
        self._lost.clear()
        return units


async def _explain(pool: Pool, name: UnitName, reason: str) -> str:
    """Return the reason for a loss, followed by the last lines of the unit's output."""
    try:
        text = await asyncio.wait_for(pool.launcher.logs(name), LOG_TIMEOUT_S)
    except (ProviderError, OSError) as error:  # TimeoutError is an OSError
        logger.debug("the output of worker %s cannot be read: %r", name, error)
        return reason
    return explained(reason, text, pool.tag, pool.shape.get("memory"))


def explained(reason: str, output: str, tag: str, memory: str | int | None) -> str:
    """Return the reason for a loss in our words, followed by the last lines of the output.
    ``memory`` is the memory of one worker, as it was written or in bytes, or None if unknown.
    """
    lines = [line for line in output.splitlines() if line.strip() and " - INFO - " not in line]
    # Dask's warnings about memory suggest leaks, and link to pages about Dask's settings.
    own = [line for line in lines if _DASK_ON_MEMORY not in line]
    if len(own) < len(lines) and "memory" not in reason:
        reason = f"{reason}, when its memory was nearly used up"
    if memory and "memory" in reason and "limit" not in reason:
        amount = as_written(memory) if isinstance(memory, int) else memory
        reason = f"{reason} (memory of component {tag!r}: {amount})"
    tail = own[-SHOWN_LINES:]
    if not tail:
        return reason
    last = tail[-1].strip()
    cause = f": {last}" if _REASON.match(last) else f", after it had printed {last!r}"
    return f"{reason}{cause}{_OUTPUT}\n  " + "\n  ".join(tail)


def note_reason(lost: LostUnit, explained_reason: str) -> Event | None:
    """Store a loss's reason in the status of its pool and in records.
    Return an event for clients if the unit failed to start for a new reason, else None.
    """
    reason = explained_reason.partition(_OUTPUT)[0]
    pool, name = lost.pool, lost.unit.name
    lost.unit.leaving = f"lost: {reason}"
    if (pool.last_loss or "").startswith(f"{name}: "):
        pool.last_loss = f"{name}: {reason}"
    if not lost.failed_start or pool.start_failure == reason:
        return None
    known, pool.start_failure = pool.start_failure, reason
    if known is not None and SILENT_SCHEDULER in known and SILENT_SCHEDULER in reason:
        return None  # clients were notified while the unit ran
    return failed_start(pool.tag, str(name), reason)
