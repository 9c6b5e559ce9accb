"""Division of the desired worker counts among the managers of a cluster."""

from __future__ import annotations

from scalable.scheduler.counts import PoolCounts, Running
from scalable.scheduler.demand import Demand
from scalable.scheduler.managers import Managers

#: Seconds to wait, once the first manager is attached, for the other expected managers. Only then
#: are the desired counts divided among the managers.
GATHER_S = 10.0


class Sharing:
    """Division of the desired counts among the managers, once the expected ones are attached."""

    def __init__(
        self, demand: Demand, managers: Managers, counts: PoolCounts, expected: int
    ) -> None:
        self._demand, self._managers, self._counts = demand, managers, counts
        self._expected = expected
        self._gather_by: float | None = None

    def share(self, now: float, running: Running | None = None) -> None:
        """Divide the desired counts, unless expected managers are still awaited."""
        if self._gathers(now):
            return
        running = self._counts.running() if running is None else running
        self._demand.share(self._managers.tiers(running, now))

    def _gathers(self, now: float) -> bool:
        """Return True while expected managers are awaited."""
        # Otherwise the first manager would get all workers, whatever its priority.
        attached = len(list(self._managers))
        if self._gather_by is None and attached:
            self._gather_by = now + GATHER_S
        if attached >= self._expected:
            self._gather_by = now
        return self._gather_by is not None and now < self._gather_by
