"""The units for which their backends charge, as a manager reports them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.units import Unit
from scalable.scaling.metering import Charge


class Charges:
    """The units of a manager that are charged, until they are gone.
    A unit is charged from the first of: its backend reports that it runs, its backend charges for
    it, its workers connect. The charge stops when a stop request has finished, or its backend
    reports that it ended.
    """

    def __init__(self) -> None:
        self.observed: Mapping[UnitName, Observation] = {}
        self.counted = False
        self._since: dict[UnitName, tuple[Unit, float]] = {}

    def of(
        self, units: Iterable[Unit], ending: Iterable[UnitName], now: float
    ) -> dict[str, Charge] | None:
        """Map the charged units to their charges, or return None if costs are not counted.
        ``ending`` names the units that are being stopped, or that may still exist after they were
        lost. ``now`` is monotonic.
        """
        known, self._since = self._since, {}
        for unit in units:
            since = _charged_since(unit, self.observed.get(unit.name), now)
            if since is not None:
                self._since[unit.name] = unit, known.get(unit.name, (unit, since))[1]
        for name in ending:
            if name in known:
                self._since.setdefault(name, known[name])
        if not self.counted:
            return None
        seen = self.observed
        return {
            str(name): _charge(unit, since, seen.get(name), now)
            for name, (unit, since) in self._since.items()
            if name not in seen or seen[name].state is not UnitState.ENDED
        }


def _charge(unit: Unit, since: float, seen: Observation | None, now: float) -> Charge:
    machine = None if seen is None else seen.machine
    workers = tuple(map(str, unit.worker_names))
    if machine is None:
        return Charge(unit.pool, now - since, workers)
    charged_s = now - since if machine.charged_s is None else machine.charged_s
    return Charge(
        unit.pool, charged_s, workers, machine.name, machine.per_hour, max(1, machine.holds)
    )


def _charged_since(unit: Unit, seen: Observation | None, now: float) -> float | None:
    charged_s = None if seen is None or seen.machine is None else seen.machine.charged_s
    moments = unit.running_since, unit.connected_at, None if charged_s is None else now - charged_s
    return min((moment for moment in moments if moment is not None), default=None)
