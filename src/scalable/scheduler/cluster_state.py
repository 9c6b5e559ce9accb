"""State of one cluster: its pools, managers, limits and workers."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from statistics import median
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import workers_by_what_they_told
from scalable.harmless import short_name
from scalable.model import PoolStatus
from scalable.model.clusters import pools_to_dict
from scalable.protocol.events import Event
from scalable.protocol.handlers import Change
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.operations import MANAGER_KEY
from scalable.protocol.pools import UNTAGGED, shown
from scalable.scheduler.limits import Lifetime, Spending
from scalable.scheduler.managers import AttachedManager, AttachedManagers, Demand
from scalable.scheduler.worker_removals import WorkerRemovals
from scalable.views.explanation import NOBODY, NOT_YET, words_of_lost


def name_of(task: TaskState) -> str:
    """Return the short name of a task in the manifest, or of its function."""
    return short_name(str((task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name))


def backlog_of(scheduler: Scheduler, tag: str) -> Mapping[str, int]:
    """Return the slots needed by a tag's tasks that are queued in clients, by task name."""
    relay = getattr(scheduler, "relay", None)
    return {} if relay is None else relay.backlog(tag)


#: Seconds to wait, once the first manager is attached, for the other expected managers. Only then
#: are the desired counts divided among the managers.
GATHER_S = 10.0


#: Maps managers and then tags to the number of workers that are connected and not leaving.
Running = Mapping[str, Mapping[str, int]]


@dataclass(eq=False, repr=False)
class ClusterState:
    """Desired and present workers of one cluster, its managers, limits and adaptive pools.
    ``on_change`` is called often, from any thread, when the status may have changed.
    """

    scheduler: Scheduler
    demand: Demand = field(default_factory=Demand)
    managers: AttachedManagers = field(default_factory=AttachedManagers)
    _: KW_ONLY
    lifetime: Lifetime = field(default_factory=Lifetime)
    #: Closes the scheduler of a detached cluster.
    close_with: Callable[[], Any] | None = None
    #: Number of managers that the creator of the cluster has started.
    expected: int = 0
    #: The :class:`~scalable.scheduler.adaptation.Adaptation` of the cluster.
    adaptation: Any = field(init=False)

    def __post_init__(self) -> None:
        self.removals = WorkerRemovals(self.scheduler)
        self.spending = Spending(self.scheduler, self.demand, self.managers)
        #: Workers of each tag that are starting.
        self.starts = defaultdict[str, Starts](Starts)
        #: Reason why the cluster is stopping, or None.
        self.ending: str | None = None
        self.event_listeners: list[Callable[[Event], None]] = []
        self.on_change: Callable[[], None] = lambda: None
        #: Monotonic time of the last report of a creator whose managers are other processes.
        self.creator_seen: float | None = None
        self._began = time.monotonic()
        self._was_ready = False
        self._gather_by: float | None = None

    # Desired counts -------------------------------------------------------------------------------

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set the desired counts of some pools, and return the counts before and after.
        A pool stops being adaptive if ``source`` is ``"manual"`` or ``"decision"``. An unknown pool
        or an invalid count raises ClusterError and changes nothing.
        """
        before = self.demand.scale(counts, self.pools(), source=source, reason=reason)
        if source in ("manual", "decision"):
            self.adaptation.end(*counts, why="its count was set")
        self.share(time.monotonic())
        self.on_change()
        return {"before": before, "after": dict(counts)}

    def share(self, now: float, running: Running | None = None) -> None:
        """Divide the desired counts once the expected managers have attached, or after a wait."""
        if self._gathers(now):
            return
        running = self.running() if running is None else running
        self.demand.share(self.managers.tiers(running, now))

    def _gathers(self, now: float) -> bool:
        """Return whether to wait for expected managers."""
        attached = len(self.managers)
        if self._gather_by is None and attached:
            self._gather_by = now + GATHER_S
        if attached >= self.expected:
            self._gather_by = now
        return self._gather_by is not None and now < self._gather_by

    def adaptive_bounds(self) -> dict[str, tuple[int, int | None]]:
        """Map the tags of adaptive pools to their minimum and maximum."""
        pools = self.adaptation.pools.items()
        return {tag: (pool.minimum, pool.maximum) for tag, pool in pools}

    def creator_lives(self) -> None:
        self.creator_seen = time.monotonic()

    def creator_silent_s(self) -> float:
        """Return the seconds since the last report of the creator or of its own manager."""
        seen = max((manager.last_seen for manager in self.managers), default=self._began)
        return time.monotonic() - (seen if self.creator_seen is None else self.creator_seen)

    # Present workers ------------------------------------------------------------------------------

    def running(self) -> Running:
        """Return the number of workers that are not leaving, by manager and tag."""
        running: dict[str, Counter[str]] = {}
        wanted = self.demand.totals
        # All workers are counted several times a second, so the loop makes few function calls.
        for ws, manager in workers_by_what_they_told(self.scheduler, MANAGER_KEY):
            if manager and not self.removals.drains(ws):
                counts = running.get(manager)
                if counts is None:
                    counts = running[manager] = Counter()
                for tag in ws.resources:
                    if tag in wanted:
                        counts[tag] += 1
        now = time.monotonic()
        for known in self.managers:
            name = known.attachment.manager
            if name not in running:
                told = {} if known.state(now) == "lost" else known.report
                running[name] = Counter({t: r.running for t, r in told.items()})
        return running

    def pools(self, running: Running | None = None) -> dict[str, PoolStatus]:
        """Map tags to the status of each pool, summed over the managers."""
        running = self.running() if running is None else running
        pools = self.managers.pools()
        return {tag: self._present(tag, pool, running) for tag, pool in pools.items()}

    def _present(self, tag: str, pool: PoolStatus, running: Running) -> PoolStatus:
        """Return a pool's reported status with counts corrected by the connected workers."""
        wanted = self.demand.totals.get(tag, pool.wanted)
        connected = sum(counts.get(tag, 0) for counts in running.values())
        beyond = self.demand.unplaced.get(tag)
        words = f"its managers' limits exclude {beyond} of its workers" if beyond else None
        held = self.demand.held if connected < wanted else None
        return replace(
            pool,
            wanted=wanted,
            running=max(0, connected - pool.suspended),
            # A report may still count a worker as launching that has connected since.
            launching=min(pool.launching, max(0, wanted - connected)),
            waiting=held or pool.waiting or words,
        )

    def workers(self, tag: str, pools: Container[str]) -> list[WorkerState]:
        """Return the connected workers of a pool."""
        workers = self.scheduler.workers
        if tag != UNTAGGED:
            return [workers[address] for address in self.scheduler.resources.get(tag) or ()]
        return [ws for ws in workers.values() if not any(name in pools for name in ws.resources)]

    def views(self, manager: str, names: set[str]) -> dict[str, dict[str, Any]]:
        """Map a manager's workers, and the given ``names``, to the fields of a ``WorkerView``."""
        told = workers_by_what_they_told(self.scheduler, MANAGER_KEY)
        asked = names.union(str(ws.name) for ws, its_manager in told if its_manager == manager)
        records = map(self.removals.records.get, asked)
        return {record.name: view for record in records if record and (view := record.view())}

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Note how many workers of each pool are starting, to measure how long they take."""
        now = time.monotonic()
        for tag, pool in pools.items():
            missing = pool.wanted - pool.running - pool.suspended
            # The connected workers of other pools are only in the managers' reports.
            is_counted = tag and tag in self.demand.totals
            self.starts[tag].expect(missing if is_counted else pool.launching, now)

    def connected(self, worker: WorkerState) -> None:
        """Record a connected worker, to measure how long workers take to start."""
        for tag in worker.resources or (UNTAGGED,):
            self.starts[tag].connected(time.monotonic())

    # Status ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and its managers."""
        scheduler = self.scheduler
        now = time.monotonic()
        running = self.running()
        pools = {tag: p for tag, p in self.pools(running).items() if tag != UNTAGGED}
        for tag, total in self.demand.totals.items():
            if tag != UNTAGGED and tag not in pools:
                pools[tag] = PoolStatus(wanted=total)
        managers = [_manager_row(manager, running, now) for manager in self.managers]
        state, reason = self._state(pools, managers)
        ends_at, idle_ends_at = self.lifetime.ends_at()
        return {
            "written_at": time.time(),
            "address": scheduler.address if scheduler.listeners else None,
            "state": state,
            "reason": reason,
            "pools": pools_to_dict(pools),
            "managers": managers,
            "ends_at": ends_at,
            "idle_ends_at": idle_ends_at,
            "cost": self.spending.status(),
            "adaptive": self.adaptive_bounds(),
        }

    @property
    def awaits_managers(self) -> bool:
        """True while the cluster waits for the first of its expected managers."""
        return bool(self.expected) and not self._was_ready and not self.managers

    def _state(  # noqa: PLR0911 - a list of cases, the first that holds
        self, pools: Mapping[str, PoolStatus], managers: list[dict[str, Any]]
    ) -> tuple[str, str | None]:
        if self.ending is not None:
            return "deleting", self.ending
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
                return "degraded", f"{shown(tag)}: {pool.reason}"
        if lost:
            return "degraded", words_of_lost(lost)
        short = [t for t, pool in pools.items() if pool.wanted and not pool.running]
        self._was_ready = self._was_ready or not short
        if short and not self._was_ready:
            return "starting", f"pool {', '.join(map(repr, short))} has no worker yet"
        return "running", None


def _manager_row(manager: AttachedManager, running: Running, now: float) -> dict[str, Any]:
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


# Starting workers ---------------------------------------------------------------------------------

#: Number of latest start durations kept for each pool. Their median predicts the next one.
KEPT_STARTS = 20


class Starts:
    """Request times of a pool's starting workers, and durations of earlier starts."""

    def __init__(self) -> None:
        self._asked_at: list[float] = []
        self._took_s: deque[float] = deque(maxlen=KEPT_STARTS)

    def expect(self, count: int, now: float) -> list[float]:
        """Set the number of starting workers, and return the seconds since each was requested."""
        del self._asked_at[max(0, count) :]
        self._asked_at += [now] * (count - len(self._asked_at))
        return [now - at for at in self._asked_at]

    def longest_s(self, now: float) -> float | None:
        """Return for how many seconds the first of the starting workers has been starting."""
        return now - self._asked_at[0] if self._asked_at else None

    def connected(self, now: float) -> None:
        """Record a connected worker, assumed to be the one requested earliest."""
        if self._asked_at:
            self._took_s.append(now - self._asked_at.pop(0))

    def typical_s(self, default: float) -> float:
        return median(self._took_s) if self._took_s else default
