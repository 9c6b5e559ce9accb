"""Background work of a manager: requests for new units, and reasons for lost ones."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.manager.inventory import Inventory
from scalable.manager.launcher import SUCCESSOR, UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Loss, Unit, with_start, worker_names
from scalable.protocol.events import SILENT_SCHEDULER, Event, failed_start
from scalable.protocol.failures import without_dask
from scalable.protocol.pools import UNTAGGED, shown
from scalable.units import as_written

logger = logging.getLogger("scalable.manager")


@dataclass(frozen=True)
class Batch:
    """Units of one pool that were requested from its launcher together."""

    pool: Pool
    names: tuple[UnitName, ...]
    task: asyncio.Task[None]
    #: True if these are all units that were due, False if the backend accepts only some at a time.
    whole: bool = True

    @property
    def error(self) -> BaseException | None:
        """Error of the request. None if the request succeeded or has not finished."""
        if not self.task.done() or self.task.cancelled():
            return None
        return self.task.exception()


class Launches:
    """Requests for new units, which run in the background. ``on_answered`` is called after each."""

    def __init__(self, on_answered: Callable[[], None]) -> None:
        self._on_answered = on_answered
        self._batches: dict[str, Batch] = {}
        self._cut: set[str] = set()

    def take_due(
        self, inventory: Inventory, is_ending: Callable[[UnitName], bool], now: float
    ) -> dict[str, dict[UnitName, Mapping[str, Any]]]:
        """Return the entries to launch now, by tag and name, and add them to the existing units.
        ``is_ending`` returns whether an earlier unit of the same name is still being stopped.
        """
        due: dict[str, dict[UnitName, Mapping[str, Any]]] = {}
        pools, units = inventory.pools, inventory.units
        self._cut.clear()
        starting = Counter(
            id(pools[unit.pool].launcher) for unit in units.values() if unit.connected_at is None
        )
        # A successor has to start before a unit's walltime ends.
        for name, entry in sorted(
            inventory.wanted.spec.items(), key=lambda item: SUCCESSOR not in item[1]
        ):
            pool = pools[entry.get("pool", UNTAGGED)]
            names = worker_names(name, entry)
            taken = name in units or is_ending(name) or any(w in inventory.workers for w in names)
            if taken or pool.tag in self._batches or not pool.may_start(now):
                continue
            most = getattr(pool.launcher, "at_once", None)
            if most is not None and starting[id(pool.launcher)] >= most:
                continue
            if pool.room is not None and len(due.get(pool.tag, ())) >= pool.room:
                self._cut.add(pool.tag)
                continue
            starting[id(pool.launcher)] += 1
            starts = with_start(inventory.wanted.starts(name), now)
            units[name] = Unit(name, pool.tag, names, now, starts=starts, in_flight=True)
            due.setdefault(pool.tag, {})[name] = entry
        return due

    def begin(self, pool: Pool, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Request units from a pool's launcher in the background. Needs a running event loop."""
        logger.debug("pool %r: launching %s", pool.tag, list(entries))
        task = asyncio.get_running_loop().create_task(
            pool.launcher.launch(entries), name=f"launch {pool.tag}"
        )
        whole = pool.tag not in self._cut
        self._batches[pool.tag] = Batch(pool, tuple(entries), task, whole)
        task.add_done_callback(lambda _: self._on_answered())

    def under_way(self) -> list[Batch]:
        """Return the batches that :meth:`take_answered` has not returned yet."""
        return list(self._batches.values())

    async def finish(self) -> list[Batch]:
        """Wait until all current requests have finished, and return their batches."""
        batches = self.under_way()
        await _wait(batches)
        return batches

    def take_answered(self) -> list[Batch]:
        """Return the batches whose requests have finished since the last call."""
        answered = [batch for batch in self._batches.values() if batch.task.done()]
        for batch in answered:
            del self._batches[batch.pool.tag]
        return answered

    async def close(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` for the requests, cancel unfinished ones, and wait as long again."""
        await _wait(self.under_way(), timeout_s)
        late = [batch for batch in self.under_way() if not batch.task.done()]
        for batch in late:
            logger.warning(
                "%s: its launcher has not answered within %g s; the request is cancelled",
                shown(batch.pool.tag),
                timeout_s,
            )
            batch.task.cancel()
        await _wait(late, timeout_s)
        for batch in self.take_answered():
            if batch.error is not None:
                logger.warning("%s: %s", shown(batch.pool.tag), batch.error)


async def _wait(batches: Iterable[Batch], timeout_s: float | None = None) -> None:
    tasks = [batch.task for batch in batches]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)


# Lost units ---------------------------------------------------------------------------------------

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


@dataclass(frozen=True)
class LostUnit:
    """Unit that was lost."""

    unit: Unit
    pool: Pool
    #: True if the pool is given up because of this loss.
    gives_up: bool
    #: True if the unit has stopped. Otherwise it may still connect.
    ended: bool
    #: True if the unit never connected, although it was not stopped from outside.
    failed_start: bool
    #: Returns the reason for the loss, with the unit's last output.
    task: asyncio.Task[str]


class Losses:
    """Lost units whose reasons are being read. Until this is done, their names are not reused."""

    def __init__(self, on_explained: Callable[[], None]) -> None:
        self._on_explained = on_explained
        self._lost: dict[UnitName, LostUnit] = {}

    @property
    def names(self) -> list[UnitName]:
        return list(self._lost)

    def __contains__(self, name: UnitName) -> bool:
        return name in self._lost

    def begin(self, pool: Pool, unit: Unit, loss: Loss, *, gives_up: bool) -> None:
        """Read the reason for a loss in the background. Needs a running event loop."""
        task = asyncio.get_running_loop().create_task(_explain(pool, unit.name, loss))
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
        """Stop reading reasons, and return the lost units, which still have to be stopped."""
        units = [lost.unit for lost in self._lost.values()]
        for lost in self._lost.values():
            lost.task.cancel()
        self._lost.clear()
        return units


async def _explain(pool: Pool, name: UnitName, loss: Loss) -> str:
    """Return the reason for a loss, followed by the last lines of the unit's output."""
    reason = loss.reason
    if loss.from_outside:
        return reason
    try:
        text = await asyncio.wait_for(pool.launcher.logs(name), LOG_TIMEOUT_S)
    except (ProviderError, OSError) as error:  # TimeoutError is an OSError
        logger.debug("the output of worker %s cannot be read: %r", name, error)
        return reason
    return explained(reason, text, pool.tag, pool.shape.get("memory"))


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


def note_reason(lost: LostUnit, explained_reason: str) -> Event | None:
    """Store a loss's reason. Return an event if a start failed for a new reason, otherwise None."""
    reason = explained_reason.partition(OUTPUT)[0]
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
