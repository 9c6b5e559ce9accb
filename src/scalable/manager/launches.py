"""Requests for new units, which run in the background, at most one for each pool at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalable.manager.inventory import Inventory
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Unit, with_start, worker_names
from scalable.protocol.pools import UNTAGGED

logger = logging.getLogger("scalable.manager")


@dataclass(frozen=True)
class Batch:
    """Units of one pool that were requested from its launcher together."""

    pool: Pool
    names: tuple[UnitName, ...]
    task: asyncio.Task[None]
    #: Whether these are all units that were due, not only as many as the backend accepts.
    whole: bool = True

    @property
    def error(self) -> BaseException | None:
        """Error of the request. None if the request succeeded or has not finished."""
        if not self.task.done() or self.task.cancelled():
            return None
        return self.task.exception()


class Launches:
    """The requests for new units, which run in the background. ``on_answered`` follows each."""

    def __init__(self, on_answered: Callable[[], None]) -> None:
        self._on_answered = on_answered
        self._batches: dict[str, Batch] = {}
        self._cut: set[str] = set()

    def take_due(
        self, inventory: Inventory, is_ending: Callable[[UnitName], bool], now: float
    ) -> dict[str, dict[UnitName, Mapping[str, Any]]]:
        """Return the entries to launch now, by tag and name, and add them to the existing units.
        ``is_ending`` returns whether an earlier unit with the same name is still being stopped.
        """
        due: dict[str, dict[UnitName, Mapping[str, Any]]] = {}
        pools, units = inventory.pools, inventory.units
        self._cut.clear()
        starting = Counter(
            id(pools[unit.pool].launcher) for unit in units.values() if unit.connected_at is None
        )
        for name, entry in inventory.wanted.spec.items():
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
        """Wait until all current requests have finished. Return their batches."""
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
        """Wait ``timeout_s`` for the requests, cancel the others, and wait as long again."""
        await _wait(self.under_way(), timeout_s)
        late = [batch for batch in self.under_way() if not batch.task.done()]
        for batch in late:
            logger.warning(
                "pool %r: its launcher has not answered within %g s; the request is cancelled",
                batch.pool.tag,
                timeout_s,
            )
            batch.task.cancel()
        await _wait(late, timeout_s)
        for batch in self.take_answered():
            if batch.error is not None:
                logger.warning("pool %r: %s", batch.pool.tag, batch.error)


async def _wait(batches: Iterable[Batch], timeout_s: float | None = None) -> None:
    tasks = [batch.task for batch in batches]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
