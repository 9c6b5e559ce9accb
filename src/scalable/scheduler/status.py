"""Snapshot of a cluster: its state, its pools, its managers and the number of its tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler

from scalable.explaining.managers import NOBODY, NOT_YET, words_of_lost
from scalable.protocol.dask_seams.scheduler import count_tasks_without_worker
from scalable.protocol.pools import UNTAGGED
from scalable.scheduler.counts import PoolCounts, Running
from scalable.scheduler.demand import Demand
from scalable.scheduler.lifetime import Lifetime
from scalable.scheduler.managers import Manager, Managers
from scalable.scheduler.spending import Spending
from scalable.spec.clusters import PoolStatus, pools_to_dict


class Status:
    """Builds snapshots of the status of one cluster.
    ``expected`` is the number of managers that the cluster starts with.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        demand: Demand,
        managers: Managers,
        counts: PoolCounts,
        lifetime: Lifetime,
        spending: Spending,
        *,
        expected: int,
    ) -> None:
        self._scheduler = scheduler
        self._demand = demand
        self._managers = managers
        self._counts = counts
        self._lifetime = lifetime
        self._spending = spending
        self._expected = expected
        self._was_ready = False

    def snapshot(self, ending: str | None) -> dict[str, Any]:
        """Return the state of the cluster, and the counts of every pool and manager.
        ``ending`` is the reason why the cluster is stopping, or None.
        """
        now = time.monotonic()
        running = self._counts.running()
        pools = {tag: p for tag, p in self._counts.pools(running).items() if tag != UNTAGGED}
        for tag, total in self._demand.totals.items():
            if tag != UNTAGGED and tag not in pools:
                pools[tag] = PoolStatus(wanted=total)
        managers = [_manager_row(manager, running, now) for manager in self._managers]
        state, reason = self._state(pools, managers, ending)
        ends_at, idle_ends_at = self._lifetime.ends_at()
        workers = self._scheduler.workers.values()
        return {
            "written_at": time.time(),
            "address": self._scheduler.address if self._scheduler.listeners else None,
            "state": state,
            "reason": reason,
            "pools": pools_to_dict(pools),
            "managers": managers,
            "ends_at": ends_at,
            "idle_ends_at": idle_ends_at,
            "cost": self._spending.status(),
            "tasks": {
                "processing": sum(len(ws.processing) for ws in workers),
                "waiting": count_tasks_without_worker(self._scheduler),
            },
        }

    @property
    def awaits_managers(self) -> bool:
        """True while the managers that the cluster starts with have not attached yet."""
        return (
            bool(self._expected) and not self._was_ready and not any(True for _ in self._managers)
        )

    def _state(  # noqa: PLR0911 - a list of cases, the first that holds
        self,
        pools: Mapping[str, PoolStatus],
        managers: list[dict[str, Any]],
        ending: str | None,
    ) -> tuple[str, str | None]:
        if ending is not None:
            return "deleting", ending
        lost = [m["id"] for m in managers if m["state"] == "lost"]
        if lost and len(lost) == len(managers):
            return "unmanaged", words_of_lost(lost)
        if self.awaits_managers:
            return "starting", NOT_YET
        if not managers:
            wanted = any(pool.wanted for pool in pools.values())
            return ("unmanaged", NOBODY) if wanted else ("running", None)
        for tag, pool in pools.items():
            if pool.reason:
                return "degraded", f"pool {tag!r}: {pool.reason}"
        if lost:
            return "degraded", words_of_lost(lost)
        short = [t for t, pool in pools.items() if pool.wanted and not pool.running]
        self._was_ready = self._was_ready or not short
        if short and not self._was_ready:
            return "starting", f"pool {', '.join(map(repr, short))} has no worker yet"
        return "running", None


def _manager_row(manager: Manager, running: Running, now: float) -> dict[str, Any]:
    attachment = manager.attachment
    connected = running.get(attachment.manager, {})
    return {
        "id": attachment.manager,
        "target": attachment.target,
        "provider": attachment.provider,
        "state": manager.state(now),
        "priority": attachment.priority,
        "silent_s": round(now - manager.last_seen, 1),
        "pools": {
            tag: {**report.to_dict(), "running": connected.get(tag, 0)}
            for tag, report in manager.report.items()
            if tag != UNTAGGED
        },
    }
