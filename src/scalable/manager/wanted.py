"""The worker specification: the units that are wanted, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import Phase, Unit
from scalable.protocol.pools import UNTAGGED


class Wanted:
    """Name -> entry of every unit that is wanted, and the source of new names.

    Generated names are never used again, so that a retried launch cannot double a unit. Names that
    the user wrote are kept when their unit is replaced.

    Parameters
    ----------
    incarnation
        Short text that makes the names of this cluster unique on its scheduler.
    """

    def __init__(self, incarnation: str) -> None:
        self.spec: dict[UnitName, dict[str, Any]] = {}
        self._incarnation = incarnation
        self._counters: dict[str, int] = {}
        self._generated: set[UnitName] = set()
        self._starts: dict[UnitName, tuple[float, ...]] = {}
        self._leaving: set[UnitName] = set()

    def names(self, tag: str) -> list[UnitName]:
        """Return the units that are wanted in a pool, in the order of their requests.

        Units whose successor was requested already do not count.
        """
        return [
            name
            for name, entry in self.spec.items()
            if entry.get("pool", UNTAGGED) == tag and name not in self._leaving
        ]

    def starts(self, name: UnitName) -> tuple[float, ...]:
        """Return the start times of the units that this one replaces; monotonic seconds."""
        return self._starts.get(name, ())

    def forget_starts(self, tag: str) -> None:
        """Forget the earlier starts of a pool's units."""
        for name in self.names(tag):
            self._starts.pop(name, None)

    def add(self, pool: Pool, starts: tuple[float, ...] = ()) -> None:
        """Add one unit to a pool."""
        count = self._counters.get(pool.tag, 0)
        while (name := self._name(pool.tag, count)) in self.spec:
            count += 1
        self._counters[pool.tag] = count + 1
        self._put(name, pool)
        self._starts[name] = starts

    def include(self, name: UnitName, pool: Pool) -> None:
        """Add a unit that an earlier process started."""
        self._put(name, pool)

    def take_back(self, pool: Pool, units: Mapping[UnitName, Unit]) -> bool:
        """Keep a draining unit of a pool, which may hold results; return whether one was found."""
        for name, unit in units.items():
            if unit.pool == pool.tag and name not in self.spec and unit.phase is Phase.DRAINING:
                self._put(name, pool)
                return True
        return False

    def remove(self, name: UnitName) -> None:
        """Stop wanting a unit."""
        self.spec.pop(name, None)
        self._generated.discard(name)
        self._starts.pop(name, None)
        self._leaving.discard(name)

    def renew(self, unit: Unit, pool: Pool) -> None:
        """Add a successor of a unit whose walltime is nearly over."""
        unit.renewed = True
        self._leaving.add(unit.name)
        self.add(pool)

    def replace(self, unit: Unit, pool: Pool) -> None:
        """Replace a lost unit, under the same name if the user chose it."""
        if unit.name in self._generated:
            self.remove(unit.name)
            self.add(pool, unit.starts)
        else:
            self._starts[unit.name] = unit.starts

    def _put(self, name: UnitName, pool: Pool) -> None:
        assert pool.template is not None
        tagged = {"pool": pool.tag} if pool.tag != UNTAGGED else {}
        self.spec[name] = {**pool.template, **tagged}
        self._generated.add(name)

    def _name(self, tag: str, count: int) -> UnitName:
        # SpecCluster names its workers by integers; units of tags have names unique to a manager.
        return count if tag == UNTAGGED else f"{tag}-{self._incarnation}-{count}"
