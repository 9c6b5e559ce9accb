"""Worker counts of each pool, from the connected workers and the managers' reports."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler

from scalable.dask_compat.scheduler import workers_by_what_they_told
from scalable.model import PoolStatus
from scalable.protocol.operations import MANAGER_KEY
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.managers import Managers

#: Maps managers and then tags to the number of workers that are connected and not leaving.
Running = Mapping[str, Mapping[str, int]]


class PoolCounts:
    """Worker counts of the pools of one cluster."""

    def __init__(
        self, scheduler: Scheduler, demand: Demand, managers: Managers, departures: Departures
    ) -> None:
        self._scheduler = scheduler
        self._demand = demand
        self._managers = managers
        self._departures = departures

    def running(self) -> Running:
        """Return how many workers of each manager are connected and not leaving.
        Most workers send their manager's id when they connect. If no connected worker has named a
        manager, that manager's last report is used.
        """
        running: dict[str, Counter[str]] = {}
        wanted = self._demand.totals
        # All workers are counted several times a second, so the loop makes few function calls.
        for ws, manager in workers_by_what_they_told(self._scheduler, MANAGER_KEY):
            if manager and self._departures.state(ws) is None:
                counts = running.get(manager)
                if counts is None:
                    counts = running[manager] = Counter()
                for tag in ws.resources:
                    if tag in wanted:
                        counts[tag] += 1
        now = time.monotonic()
        for known in self._managers:
            name = known.attachment.manager
            if name not in running:
                told = {} if known.state(now) == "lost" else known.report
                running[name] = Counter({t: r.running for t, r in told.items()})
        return running

    def pools(self, running: Running | None = None) -> dict[str, PoolStatus]:
        running = self.running() if running is None else running
        pools = self._managers.pools()
        return {tag: self._present(tag, pool, running) for tag, pool in pools.items()}

    def _present(self, tag: str, pool: PoolStatus, running: Running) -> PoolStatus:
        """Return a pool's reported status with counts corrected from the connected workers."""
        wanted = self._demand.totals.get(tag, pool.wanted)
        connected = sum(counts.get(tag, 0) for counts in running.values())
        beyond = self._demand.unplaced.get(tag)
        words = f"its managers' limits exclude {beyond} of its workers" if beyond else None
        held = self._demand.held if connected < wanted else None
        return dataclasses.replace(
            pool,
            wanted=wanted,
            running=max(0, connected - pool.suspended),
            # A report may still count a worker as launching that has connected since.
            launching=min(pool.launching, max(0, wanted - connected)),
            waiting=held or pool.waiting or words,
        )

    def views(self, manager: str, names: set[str]) -> dict[str, dict[str, Any]]:
        """Map names of a manager's workers, and of ``names``, to the fields of a ``WorkerView``."""
        return {
            str(ws.name): {
                "address": ws.address,
                "processing": len(ws.processing),
                "occupancy": ws.occupancy,
                "nbytes": ws.nbytes,
                "drain": self._departures.state(ws),
                "leaves": self._departures.reason(ws),
            }
            for ws, its_manager in workers_by_what_they_told(self._scheduler, MANAGER_KEY)
            if its_manager == manager or str(ws.name) in names
        }

    def claims(self) -> dict[str, str]:
        told = workers_by_what_they_told(self._scheduler, MANAGER_KEY)
        return {str(worker.name): manager for worker, manager in told if manager}
