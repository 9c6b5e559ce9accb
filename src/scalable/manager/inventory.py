"""The pools of one worker manager, with their desired units and their existing units."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from scalable.errors import ClusterError
from scalable.manager.decisions import choose_victims
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool, status_of
from scalable.manager.units import Unit, WorkerView, worker_names
from scalable.manager.wanted import Wanted
from scalable.protocol.pools import UNTAGGED, check_count, check_tag
from scalable.spec import names
from scalable.spec.clusters import PoolStatus

logger = logging.getLogger("scalable.manager")


class Inventory:
    """Pools, desired units and existing units of one manager. Thread-safe.
    ``incarnation`` makes the manager's unit names unique on its scheduler. ``on_change`` is called
    after each change of the desired units, and by launchers when a unit ended. ``changing`` is held
    during changes. ``leaving``: all units are being stopped, and orders are ignored.
    """

    def __init__(self, incarnation: str, on_change: Callable[[], None]) -> None:
        self.pools: dict[str, Pool] = {}
        self.wanted = Wanted(incarnation)
        self.units: dict[UnitName, Unit] = {}
        self.workers: Mapping[str, WorkerView] = {}
        self.changing = threading.RLock()
        self.leaving = False
        self._on_change = on_change
        self._obeyed: dict[str, int] = {}

    def add_pool(self, pool: Pool) -> None:
        """Add an empty pool. Raise ClusterError if the tag exists or is invalid."""
        if pool.tag != UNTAGGED:
            names.TAG.require(pool.tag)
        with self.changing:
            if pool.tag in self.pools:
                raise ClusterError(f"pool {pool.tag!r} exists already")
            self.pools[pool.tag] = pool
        if hasattr(pool.launcher, "on_change"):
            pool.launcher.on_change = self._on_change

    def pool(self, tag: str) -> Pool:
        """Return the pool of a tag. Raise ClusterError if there is none."""
        check_tag(tag, self.pools)
        return self.pools[tag]

    def want(self, tag: str, count: int, reason: str = "scale") -> None:
        """Set the number of desired units of a pool. A degraded pool is always retried."""
        with self.changing:
            pool = self.pool(tag)
            self.check(tag, count)
            if pool.degraded:
                logger.info("pool %r is tried again: %s", tag, reason)
            pool.start_anew()
            names = self.wanted.names(tag)
            self.wanted.forget_starts(tag)
            for _ in range(count - len(names)):
                if not self.wanted.take_back(pool, self.units):
                    self.wanted.add(pool)
            for name in choose_victims(names, len(names) - count, self.units, self.workers):
                logger.debug("unit %s is no longer wanted: %s", name, reason)
                self.wanted.remove(name)
        self._on_change()

    def check(self, tag: str, count: int) -> int:
        """Check a new count for a pool, and return the current number of desired units.
        Raise ClusterError if the pool does not exist, the count is not an integer of at least 0,
        or a pool without a template would grow.
        """
        pool = self.pool(tag)
        check_count(tag, count)
        before = len(self.wanted.names(tag))
        if count > before and pool.template is None:
            raise ClusterError(
                f"pool {tag!r} has no template to start workers from",
                hint="give PoolCluster worker=, or add entries to worker_spec",
            )
        return before

    def obey(self, orders: Mapping[str, tuple[int, int]]) -> None:
        """Set the desired counts from the scheduler's orders: (serial number, count) by tag.
        An order is ignored unless its serial number is higher than that of the tag's last order.
        """
        with self.changing:
            for tag, (serial, count) in orders.items():
                if tag in self.pools and serial > self._obeyed.get(tag, 0) and not self.leaving:
                    logger.debug("pool %r: order %d, %d units are wanted", tag, serial, count)
                    self._obeyed[tag] = serial
                    self.want(tag, count, "order")

    def leave(self) -> None:
        """Drain and stop all units, and ignore further orders."""
        with self.changing:
            self.leaving = True
            for tag in self.pools:
                self.want(tag, 0, "leave")

    def discard(self, names: Iterable[UnitName]) -> None:
        with self.changing:
            for name in list(names):
                self.wanted.remove(name)
        self._on_change()

    async def adopt(self) -> list[UnitName]:
        """Adopt units that an earlier process of this manager left running. Return their names."""
        adopted: list[UnitName] = []
        now = time.monotonic()
        for launcher in {id(p.launcher): p.launcher for p in self.pools.values()}.values():
            for name, tag in (await launcher.adopt()).items():
                pool = self.pools.get(tag)
                if pool is None or pool.template is None or name in self.units:
                    continue
                logger.debug("pool %r: unit %s is adopted", tag, name)
                self.wanted.include(name, pool)
                names = worker_names(name, pool.template)
                self.units[name] = Unit(name, tag, names, launched_at=now)
                adopted.append(name)
        return adopted

    async def close_launchers(self) -> None:
        """Close the launchers that have a ``close`` method."""
        for launcher in {id(p.launcher): p.launcher for p in self.pools.values()}.values():
            if hasattr(launcher, "close"):
                await launcher.close()

    def status(self) -> dict[str, PoolStatus]:
        with self.changing:
            units = list(self.units.values())
            return {
                tag: status_of(pool, self.wanted.names(tag), units)
                for tag, pool in self.pools.items()
            }

    def existing(self) -> dict[UnitName, Unit]:
        with self.changing:
            return dict(self.units)

    def take_all(self) -> list[Unit]:
        """Remove all desired and existing units. Return the units that existed."""
        with self.changing:
            units = list(self.units.values())
            self.units.clear()
            self.wanted.spec.clear()
            return units
