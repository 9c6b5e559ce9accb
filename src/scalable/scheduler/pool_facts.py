"""Collection of the facts about pools that explanations use."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import workers_by_what_they_told
from scalable.dask_compat.tasks import usual_duration
from scalable.harmless import short_name
from scalable.model import PoolStatus, Starting
from scalable.protocol.events import Event
from scalable.protocol.handlers import Change
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.operations import MANAGER_KEY
from scalable.protocol.pools import UNTAGGED, Attachment, slots_of
from scalable.scaling.task_model import Kind, TaskModel
from scalable.scheduler.managers import AttachedManagers, Demand
from scalable.scheduler.task_log import running_tasks
from scalable.scheduler.worker_removals import WorkerRemovals
from scalable.views.facts import (
    AdaptiveFacts,
    LeavingWorker,
    ManagerFacts,
    PoolFacts,
    RunningTask,
)

#: Maximum number of running tasks in the facts about a pool.
SHOWN_RUNNING = 20


class ClusterState(Protocol):
    """State of a cluster, provided by a controller for readers and for scaling."""

    scheduler: Scheduler
    demand: Demand
    managers: AttachedManagers
    counts: PoolCounts
    removals: WorkerRemovals
    #: The :class:`~scalable.scheduler.adaptation.Adaptation` of the cluster.
    adaptation: Any
    ending: str | None
    event_listeners: list[Callable[[Event], None]]

    @property
    def awaits_managers(self) -> bool:
        """True while the cluster waits for the first of its expected managers."""

    def attachments(self) -> list[Attachment]:
        """Return the attachment of each known manager."""

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and its managers."""

    def pools(self) -> Mapping[str, PoolStatus]:
        """Return the status of every pool by tag."""

    def adaptive_bounds(self) -> Mapping[str, tuple[int, int | None]]:
        """Map the tags of adaptive pools to their minimum and maximum."""

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set the desired counts of some pools, and return the counts before and after."""


class PoolReader:
    """Reads the facts about the pools of one cluster."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._scheduler = cluster.scheduler

    def facts(self, tag: str, pools: Mapping[str, PoolStatus] | None = None) -> PoolFacts:
        """Return the facts about a pool, which may be unknown."""
        cluster, now = self._cluster, time.monotonic()
        pools = cluster.counts.pools() if pools is None else pools
        status = pools.get(tag)
        managers = [m for m in cluster.managers if tag in m.attachment.pools or tag in m.report]
        workers = self.workers(tag, pools)
        if status is None and workers:  # workers that no manager has started
            slots = max(_capacity(ws, tag) for ws in workers)
            status = PoolStatus(wanted=len(workers), running=len(workers), slots=slots)
        working = [ws for ws in workers if not cluster.removals.drains(ws)]
        if status is not None:  # managers' reports arrive later than workers
            here = max(status.running, len(working) - status.suspended)
            status = replace(status, running=here)
        busy, running, waiting = self._load(working, tag)
        starts = cluster.counts.starts[tag]
        expected = [Starting(**m.attachment.starting).startup_s for m in managers]
        name = getattr(self._scheduler, "cluster_name", "")
        most = getattr(self._scheduler, "max_workers", None)
        option = getattr(self._scheduler, "limited_by", "max_workers")
        return PoolFacts(
            tag=tag,
            known_tags=tuple(sorted(pools)),
            status=status,
            connected=len(workers),
            managers=tuple(
                ManagerFacts(m.attachment.manager, m.state(now), now - m.last_seen)
                for m in managers
            ),
            attached=len(cluster.managers),
            awaits_managers=cluster.awaits_managers,
            adaptive=self._adaptive(tag),
            held=cluster.demand.held,
            way_out=cluster.demand.way_out,
            ending=cluster.ending,
            cluster_name=name,
            detached=bool(name),
            wanted_in_all=sum(pool.wanted for pool in pools.values()),
            # Each of several managers has a target with its own limit.
            max_workers=most if len(cluster.managers) <= 1 else None,
            limited_by=option,
            launching_s=starts.longest_s(now),
            usual_start_s=starts.typical_s(min(expected, default=0.0)) or None,
            leaving=tuple(
                LeavingWorker(str(ws.name), cluster.removals.why(ws))
                for ws in workers
                if cluster.removals.drains(ws)
            ),
            paused=tuple(str(ws.name) for ws in working if ws.status is Status.paused),
            busy_slots=busy,
            slots=sum(_capacity(ws, tag) for ws in working),
            running=running,
            waiting=waiting,
            in_clients=self._in_clients(tag),
        )

    def workers(self, tag: str, pools: Mapping[str, Any]) -> list[WorkerState]:
        """Return the connected workers of a tag, else the untagged ones, else all workers."""
        workers = self._scheduler.workers
        if tag:
            return [workers[address] for address in self._scheduler.resources.get(tag) or ()]
        none = [ws for ws in workers.values() if not any(name in pools for name in ws.resources)]
        return none or list(workers.values())

    def _load(
        self, workers: list[WorkerState], tag: str
    ) -> tuple[int, tuple[RunningTask, ...], int]:
        busy = waiting = 0
        oldest: list[tuple[float, TaskState, WorkerState]] = []
        for ws in workers:
            taken = count = 0
            for task, since_s in running_tasks(ws):
                taken += max(1, slots_of(task.resource_restrictions, tag))
                oldest.append((since_s, task, ws))
                count += 1
            busy += min(taken, _capacity(ws, tag))
            waiting += len(ws.processing) - count
        first = heapq.nlargest(SHOWN_RUNNING, oldest, key=lambda each: each[0])
        return busy, tuple(self.running(task, ws, s) for s, task, ws in first), waiting

    def running(self, task: TaskState, worker: WorkerState, since_s: float) -> RunningTask:
        left = self.left_s(task, since_s)
        return RunningTask(str(task.key), name_of(task), str(worker.name), since_s, left)

    def left_s(self, task: TaskState, since_s: float) -> float | None:
        """Return the expected remaining seconds of a running task, or None if unknown."""
        model: TaskModel = self._cluster.adaptation.model
        tag = next(iter(task.resource_restrictions or ()), UNTAGGED)
        kind = Kind(tag, name_of(task))
        if model.knows(kind):
            return model.residual_s(kind, since_s)
        mean = usual_duration(task)
        return None if mean is None else max(0.0, mean - since_s)

    def _adaptive(self, tag: str) -> AdaptiveFacts | None:
        pool = self._cluster.adaptation.pools.get(tag)
        if pool is None:
            return None
        decided = pool.decision
        count, reason = (None, "") if decided is None else (decided.workers, decided.reason)
        return AdaptiveFacts(pool.minimum, pool.maximum, count, reason)

    def _in_clients(self, tag: str) -> int:
        relay = getattr(self._scheduler, "relay", None)
        return 0 if relay is None else sum(relay.backlog(tag).values())


def name_of(task: TaskState) -> str:
    """Return the short name of a task in the manifest, or of its function."""
    return short_name(str((task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name))


def _capacity(worker: WorkerState, tag: str) -> int:
    return int(worker.resources.get(tag, 0)) if tag else worker.nthreads


# Worker counts ------------------------------------------------------------------------------------

#: Maps managers and then tags to the number of workers that are connected and not leaving.
Running = Mapping[str, Mapping[str, int]]


class PoolCounts:
    """Worker counts of the pools of one cluster."""

    def __init__(
        self,
        scheduler: Scheduler,
        demand: Demand,
        managers: AttachedManagers,
        removals: WorkerRemovals,
    ) -> None:
        self._scheduler = scheduler
        self._demand = demand
        self._managers = managers
        self._removals = removals
        #: Workers of each tag that are starting.
        self.starts = defaultdict[str, Starts](Starts)

    def running(self) -> Running:
        """Return the number of workers that are not leaving, by manager and tag."""
        running: dict[str, Counter[str]] = {}
        wanted = self._demand.totals
        # All workers are counted several times a second, so the loop makes few function calls.
        for ws, manager in workers_by_what_they_told(self._scheduler, MANAGER_KEY):
            if manager and not self._removals.drains(ws):
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
        """Return a pool's reported status with counts corrected by the connected workers."""
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
        """Map a manager's workers, and the given ``names``, to the fields of a ``WorkerView``."""
        views = {}
        for ws, its_manager in workers_by_what_they_told(self._scheduler, MANAGER_KEY):
            if its_manager == manager or str(ws.name) in names:
                record = self._removals.records.of(str(ws.name))
                views[record.name] = {
                    "address": ws.address,
                    "processing": len(ws.processing),
                    "occupancy": ws.occupancy,
                    "nbytes": ws.nbytes,
                    "drain": record.drain and record.drain.state,
                    "leaves": record.leaves,
                }
        return views

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Note how many workers of each pool are starting, to measure how long they take."""
        now = time.monotonic()
        for tag, pool in pools.items():
            missing = pool.wanted - pool.running - pool.suspended
            # The connected workers of other pools are only in the managers' reports.
            is_counted = tag and tag in self._demand.totals
            self.starts[tag].expect(missing if is_counted else pool.launching, now)

    def connected(self, worker: WorkerState) -> None:
        """Record a connected worker, to measure how long workers take to start."""
        for tag in worker.resources or (UNTAGGED,):
            self.starts[tag].connected(time.monotonic())

    def claims(self) -> dict[str, str]:
        told = workers_by_what_they_told(self._scheduler, MANAGER_KEY)
        return {str(worker.name): manager for worker, manager in told if manager}


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
