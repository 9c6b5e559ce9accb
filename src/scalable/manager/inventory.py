"""Pools of one worker manager, with their desired units and their existing units."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

from scalable.errors import ClusterError
from scalable.manager.launcher import SUCCESSOR, Launcher, UnitName
from scalable.manager.pools import Pool, status_of
from scalable.manager.units import (
    Phase,
    Unit,
    WorkerView,
    choose_victims,
    with_start,
    worker_names,
)
from scalable.model import names
from scalable.model.clusters import PoolStatus
from scalable.protocol.pools import UNTAGGED, check_count, check_tag, shown

logger = logging.getLogger("scalable.manager")


class Inventory:
    """Pools, desired units and existing units of one manager. Thread-safe.
    ``on_change`` is called after each change of the desired units. The lock ``changing`` is held
    during changes. ``leaving`` is true when all units are being stopped and orders are ignored.

    Generated names contain ``incarnation`` and are never reused, so that repeating a request cannot
    start a second unit. A name chosen by the user is kept when its unit is replaced.
    """

    def __init__(self, incarnation: str, on_change: Callable[[], None]) -> None:
        self.pools: dict[str, Pool] = {}
        #: Entries of the desired units.
        self.spec: dict[UnitName, dict[str, Any]] = {}
        self.units: dict[UnitName, Unit] = {}
        #: Units from their loss or the decision to stop them until nothing is left of them. Until
        #: then, their names are not reused.
        self.ending: dict[UnitName, Unit] = {}
        self.workers: Mapping[str, WorkerView] = {}
        self.changing = threading.RLock()
        self.leaving = False
        self._on_change = on_change
        self._obeyed: dict[str, int] = {}
        self._incarnation = incarnation
        self._counters = Counter[str]()
        self._generated: set[UnitName] = set()
        #: Start times of the units that a unit replaces, in monotonic seconds.
        self._starts: dict[UnitName, tuple[float, ...]] = {}

    def add_pool(self, pool: Pool) -> None:
        """Add an empty pool. Raise ClusterError if the tag exists or is invalid."""
        if pool.tag != UNTAGGED:
            names.TAG.require(pool.tag)
        with self.changing:
            if pool.tag in self.pools:
                raise ClusterError(f"{shown(pool.tag)} already exists")
            self.pools[pool.tag] = pool
        if hasattr(pool.launcher, "on_change"):
            pool.launcher.on_change = self._on_change

    def pool(self, tag: str) -> Pool:
        check_tag(tag, self.pools)
        return self.pools[tag]

    def want(self, tag: str, count: int, reason: str = "scale") -> None:
        """Set the number of desired units of a pool. This also restarts a degraded pool."""
        with self.changing:
            pool = self.pool(tag)
            self.check(tag, count)
            if pool.degraded:
                logger.info("%s is retried: %s", shown(tag), reason)
            pool.start_anew()
            names = self.names(tag)
            for name in names:
                self._starts.pop(name, None)
            for _ in range(count - len(names)):
                if not self._take_back(pool):
                    self._add(pool)
            for name in choose_victims(names, len(names) - count, self.units, self.workers):
                logger.debug("unit %s is no longer desired: %s", name, reason)
                self.remove(name)
        self._on_change()

    def check(self, tag: str, count: int) -> None:
        """Raise ClusterError for an unknown pool, invalid count, or growth without a template."""
        pool = self.pool(tag)
        check_count(tag, count)
        if pool.template is None and count > len(self.names(tag)):
            raise ClusterError(
                f"{shown(tag)} has no template to start workers from",
                hint="pass worker= to PoolCluster, or add entries to worker_spec",
            )

    def obey(self, orders: Mapping[str, tuple[int, int]]) -> None:
        """Set desired counts from orders by tag, (serial number, count). Ignore outdated orders."""
        with self.changing:
            for tag, (serial, count) in orders.items():
                if tag in self.pools and serial > self._obeyed.get(tag, 0) and not self.leaving:
                    logger.debug("pool %r: order %d, %d units are desired", tag, serial, count)
                    self._obeyed[tag] = serial
                    self.want(tag, count, "order")

    def leave(self) -> None:
        """Drain and stop all units, and ignore further orders."""
        with self.changing:
            self.leaving = True
            for tag in self.pools:
                self.want(tag, 0, "leave")

    def discard(self, asked: Iterable[UnitName]) -> Counter[str]:
        """Remove units from the desired ones, given the names of units or of their workers.
        Return the number of removed units by tag.
        """
        names = set(asked)
        removed = Counter[str]()
        with self.changing:
            for name, entry in list(self.spec.items()):
                if name in names or not names.isdisjoint(worker_names(name, entry)):
                    removed[entry.get("pool", UNTAGGED)] += 1
                    self.remove(name)
        self._on_change()
        return removed

    def take_due(
        self, asked: Container[str], now: float
    ) -> dict[str, dict[UnitName, Mapping[str, Any]]]:
        """Return the entries to launch now, by tag and name, and add them to the existing units.
        ``asked`` has the tags of pools whose launcher has not answered the last request.
        """
        due: dict[str, dict[UnitName, Mapping[str, Any]]] = {}
        starting = Counter(
            id(self.pools[unit.pool].launcher)
            for unit in self.units.values()
            if unit.connected_at is None
        )
        # A successor has to start before a unit's walltime ends.
        for name, entry in sorted(self.spec.items(), key=lambda item: SUCCESSOR not in item[1]):
            pool = self.pools[entry.get("pool", UNTAGGED)]
            names = worker_names(name, entry)
            taken = name in self.units or name in self.ending
            taken = taken or any(worker in self.workers for worker in names)
            if taken or pool.tag in asked or not pool.may_start(now):
                continue
            most = getattr(pool.launcher, "at_once", None)
            if most is not None and starting[id(pool.launcher)] >= most:
                continue
            pool.cut = pool.room is not None and len(due.get(pool.tag, ())) >= pool.room
            if pool.cut:
                continue
            starting[id(pool.launcher)] += 1
            starts = with_start(self._starts.get(name, ()), now)
            self.units[name] = Unit(name, pool.tag, names, now, starts=starts, in_flight=True)
            due.setdefault(pool.tag, {})[name] = entry
        return due

    async def adopt(self) -> list[UnitName]:
        """Adopt units left by an earlier process of this manager, and return their names."""
        adopted: list[UnitName] = []
        now = time.monotonic()
        for launcher in self.launchers():
            for name, tag in (await launcher.adopt()).items():
                pool = self.pools.get(tag)
                if pool is None or pool.template is None or name in self.units:
                    continue
                logger.debug("pool %r: unit %s is adopted", tag, name)
                self._put(name, pool)
                names = worker_names(name, pool.template)
                self.units[name] = Unit(name, tag, names, launched_at=now)
                adopted.append(name)
        return adopted

    def launchers(self) -> Iterable[Launcher]:
        return {id(pool.launcher): pool.launcher for pool in self.pools.values()}.values()

    async def close_launchers(self) -> None:
        """Close the launchers that have a ``close`` method."""
        for launcher in self.launchers():
            if hasattr(launcher, "close"):
                await launcher.close()

    def status(self) -> dict[str, PoolStatus]:
        with self.changing:
            units = list(self.units.values())
            return {
                tag: status_of(pool, self.names(tag), units) for tag, pool in self.pools.items()
            }

    def existing(self) -> dict[UnitName, Unit]:
        with self.changing:
            return dict(self.units)

    def take_all(self) -> list[Unit]:
        """Remove all desired and existing units, and return the ones that existed."""
        with self.changing:
            units = list(self.units.values())
            self.units.clear()
            self.spec.clear()
            return units

    # Desired units ------------------------------------------------------------------------------

    def names(self, tag: str) -> list[UnitName]:
        """Return the desired units of a pool in insertion order, except those with a successor."""
        return [
            name
            for name, entry in self.spec.items()
            if entry.get("pool", UNTAGGED) == tag
            and not (name in self.units and self.units[name].renewed)
        ]

    def _add(
        self, pool: Pool, starts: tuple[float, ...] = (), marks: Mapping[str, Any] | None = None
    ) -> None:
        """Add one desired unit to a pool, under a new name. ``marks`` is added to its entry."""
        new_entry = pool.new_entry or partial(self._new_entry, pool)
        for name, entry in new_entry().items():
            self._put(name, pool, entry)
            self.spec[name].update(marks or {})
            self._starts[name] = starts

    def _take_back(self, pool: Pool) -> bool:
        """Make one of the pool's draining units desired again. Return False if there is none."""
        for name, unit in self.units.items():
            drains = unit.pool == pool.tag and unit.phase is Phase.DRAINING
            if drains and not (unit.superseded or unit.renewed or name in self.spec):
                self._put(name, pool)
                return True
        return False

    def remove(self, name: UnitName) -> None:
        """Make a unit undesired."""
        self.spec.pop(name, None)
        self._generated.discard(name)
        self._starts.pop(name, None)

    def renew(self, unit: Unit) -> None:
        """Add a successor for a unit near the end of its walltime, unless it has one."""
        if not unit.renewed:
            logger.debug("unit %s is renewed", unit.name)
            unit.renewed = True
            self._add(self.pools[unit.pool], marks={SUCCESSOR: True})

    def replace(self, unit: Unit) -> None:
        """Replace a lost unit. The new unit keeps a name that the user has chosen."""
        if unit.renewed:  # its successor replaces it
            self.remove(unit.name)
        elif unit.name in self._generated:
            self.remove(unit.name)
            self._add(self.pools[unit.pool], unit.starts)
        else:
            self._starts[unit.name] = unit.starts

    def _put(self, name: UnitName, pool: Pool, entry: Mapping[str, Any] | None = None) -> None:
        """Add a desired unit, by default with the template of its pool."""
        entry = pool.template if entry is None else entry
        assert entry is not None
        tagged = {"pool": pool.tag} if pool.tag != UNTAGGED else {}
        self.spec[name] = {**entry, **tagged}
        self._generated.add(name)

    def _new_entry(self, pool: Pool) -> dict[UnitName, None]:
        tag = pool.tag
        while True:
            count = self._counters[tag]
            self._counters[tag] += 1
            # As in SpecCluster, the pool without a tag uses integers as names.
            name = count if tag == UNTAGGED else f"{tag}-{self._incarnation}-{count}"
            if name not in self.spec:
                return {name: None}
