"""Workers without a manager: unknown to their manager, or left by a silent one."""

from __future__ import annotations

import logging

from distributed import Scheduler

from scalable.protocol.dask_seams.connected_workers import workers_by_what_they_told
from scalable.protocol.operations import MANAGER_KEY
from scalable.scheduler.counts import PoolCounts
from scalable.scheduler.lifetime import Lifetime
from scalable.scheduler.managers import LEASE_S, Managers

logger = logging.getLogger("scalable.scheduler")


class UnmanagedWorkers:
    """Finds the workers that have to retire because no manager takes care of them."""

    def __init__(
        self, scheduler: Scheduler, managers: Managers, counts: PoolCounts, lifetime: Lifetime
    ) -> None:
        self._scheduler = scheduler
        self._managers = managers
        self._counts = counts
        self._lifetime = lifetime
        self._lost: set[str] = set()

    def look(self, now: float) -> dict[str, str]:
        """Map the workers that have to retire to reasons. ``now`` is monotonic seconds."""
        strangers = self._managers.strangers(self._counts.claims(), now)
        for worker in strangers:
            logger.warning("worker %s retires: its manager does not know it", worker)
        lost = self._managers.lost(now)
        for manager in lost - self._lost:
            logger.info("manager %r is lost: it has sent no heartbeat for %g s", manager, LEASE_S)
        self._lost = lost
        silent = self._managers.silent(self._lifetime.limits.manager_grace_s, now)
        silent_words = "its manager does not report any more, and it has no calls"
        told = workers_by_what_they_told(self._scheduler, MANAGER_KEY) if silent else ()
        idle = {
            str(worker.name): silent_words
            for worker, manager in told
            if manager in silent and not worker.processing
        }
        return idle | dict.fromkeys(strangers, "its manager does not know it")
