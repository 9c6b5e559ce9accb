"""The worker specification: the desired units of a manager, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Phase, Unit
from scalable.protocol.pools import UNTAGGED


class Wanted:
    """The desired units of a manager: the entries in ``spec``, by name.
    Generated names contain ``incarnation`` and are never reused, so that repeating a request cannot
    start a second unit. A name that the user wrote is kept when its unit is replaced.
    """

    def __init__(self, incarnation: str) -> None:
        self.spec: dict[UnitName, dict[str, Any]] = {}
        self._incarnation = incarnation
        self._counters: dict[str, int] = {}
        self._generated: set[UnitName] = set()
        self._starts: dict[UnitName, tuple[float, ...]] = {}
        self._leaving: set[UnitName] = set()

    def names(self, tag: str) -> list[UnitName]:
        """Return the desired units of a pool in insertion order, without those with a successor."""
        return [
            name
            for name, entry in self.spec.items()
            if entry.get("pool", UNTAGGED) == tag and name not in self._leaving
        ]

    def starts(self, name: UnitName) -> tuple[float, ...]:
        """Return the start times of the units that a unit replaces, in monotonic seconds."""
        return self._starts.get(name, ())

    def forget_starts(self, tag: str) -> None:
        for name in self.names(tag):
            self._starts.pop(name, None)

    def add(self, pool: Pool, starts: tuple[float, ...] = ()) -> None:
        """Add one desired unit to a pool, under a new name."""
        if pool.new_entry is not None:
            for name, entry in pool.new_entry().items():
                self._put(name, pool, entry)
                self._starts[name] = starts
            return
        count = self._counters.get(pool.tag, 0)
        while (name := self._name(pool.tag, count)) in self.spec:
            count += 1
        self._counters[pool.tag] = count + 1
        self._put(name, pool)
        self._starts[name] = starts

    def include(self, name: UnitName, pool: Pool) -> None:
        """Add a desired unit that an earlier process started."""
        self._put(name, pool)

    def take_back(self, pool: Pool, units: Mapping[UnitName, Unit]) -> bool:
        """Make a draining unit, which may have results, desired again. Return False without one."""
        for name, unit in units.items():
            takes = unit.pool == pool.tag and unit.phase is Phase.DRAINING and not unit.superseded
            if takes and name not in self.spec:
                self._put(name, pool)
                return True
        return False

    def remove(self, name: UnitName) -> None:
        self.spec.pop(name, None)
        self._generated.discard(name)
        self._starts.pop(name, None)
        self._leaving.discard(name)

    def renew(self, unit: Unit, pool: Pool) -> None:
        """Add a successor for a unit whose walltime is nearly over."""
        unit.renewed = True
        self._leaving.add(unit.name)
        self.add(pool)

    def replace(self, unit: Unit, pool: Pool) -> None:
        """Replace a lost unit. The new unit keeps a name that the user wrote."""
        if unit.name in self._generated:
            self.remove(unit.name)
            self.add(pool, unit.starts)
        else:
            self._starts[unit.name] = unit.starts

    def _put(self, name: UnitName, pool: Pool, entry: Mapping[str, Any] | None = None) -> None:
        entry = pool.template if entry is None else entry
        assert entry is not None
        tagged = {"pool": pool.tag} if pool.tag != UNTAGGED else {}
        self.spec[name] = {**entry, **tagged}
        self._generated.add(name)

    def _name(self, tag: str, count: int) -> UnitName:
        # As in SpecCluster, the pool without a tag uses integers as names.
        return count if tag == UNTAGGED else f"{tag}-{self._incarnation}-{count}"
