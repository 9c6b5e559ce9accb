"""Collects the facts about pools that explanations are made from."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.tasks import usual_duration
from scalable.harmless import short_name
from scalable.model import PoolStatus, Starting
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.pools import UNTAGGED, Attachment, slots_of
from scalable.scaling.task_model import Kind, TaskModel
from scalable.scheduler.counts import PoolCounts
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.managers import Managers
from scalable.scheduler.pool_views import Starts
from scalable.views.facts import (
    AdaptiveFacts,
    LeavingWorker,
    ManagerFacts,
    PoolFacts,
    RunningCall,
)

#: Maximum number of running tasks in the facts about a pool.
SHOWN_RUNNING = 20
#: Number of the first tasks sent to a worker that are examined, beyond those that it can run, to
#: find the ones that it has started.
LOOKED_SENT = 50


class Explained(Protocol):
    """Cluster whose pools and tasks are explained, usually a controller."""

    scheduler: Scheduler
    demand: Demand
    managers: Managers
    counts: PoolCounts
    departures: Departures
    ending: str | None

    @property
    def awaits_managers(self) -> bool:
        """True while managers that the cluster starts with have not attached yet."""

    def attachments(self) -> list[Attachment]:
        """Return the attachment of each known manager."""


class PoolReader:
    """Reads the facts about the pools of one cluster.
    ``follower`` returns the object that scales adaptive pools, or None.
    """

    def __init__(self, cluster: Explained, follower: Callable[[], Any]) -> None:
        self._cluster, self._follower = cluster, follower
        self._scheduler = cluster.scheduler
        self._starts: dict[str, Starts] = {}
        self._since: dict[str, float | None] = {}

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        now = time.monotonic()
        for tag, pool in pools.items():
            waits = self._starts.setdefault(tag, Starts()).expect(pool.launching, now)
            self._since[tag] = now - waits[0] if waits else None

    def connected(self, worker: WorkerState) -> None:
        """Record a connected worker, to measure how long workers take to start."""
        for tag in worker.resources or (UNTAGGED,):
            if tag in self._starts:
                self._starts[tag].connected(time.monotonic())

    def facts(self, tag: str, pools: Mapping[str, PoolStatus] | None = None) -> PoolFacts:
        """Return the facts about a pool, which need not exist."""
        cluster, now = self._cluster, time.monotonic()
        pools = cluster.counts.pools() if pools is None else pools
        status = pools.get(tag)
        managers = [m for m in cluster.managers if tag in m.attachment.pools or tag in m.report]
        workers = self.workers(tag, pools)
        if status is None and workers:  # workers that no manager has started
            slots = max(_capacity(ws, tag) for ws in workers)
            status = PoolStatus(wanted=len(workers), running=len(workers), slots=slots)
        working = [ws for ws in workers if cluster.departures.state(ws) is None]
        if status is not None:  # managers' reports arrive later than workers
            here = max(status.running, len(working) - status.suspended)
            status = replace(status, running=here)
        busy, running, waiting = self._load(working, tag)
        since = self._since.get(tag)
        name = getattr(self._scheduler, "cluster_name", "")
        most = getattr(self._scheduler, "max_workers", None)
        return PoolFacts(
            tag=tag,
            known_tags=tuple(sorted(pools)),
            status=status,
            connected=len(workers),
            managers=tuple(
                ManagerFacts(m.attachment.manager, m.state(now), now - m.last_seen)
                for m in managers
            ),
            attached=len(list(cluster.managers)),
            awaits_managers=cluster.awaits_managers,
            adaptive=self._adaptive(tag),
            held=cluster.demand.held,
            way_out=cluster.demand.way_out,
            ending=cluster.ending,
            cluster_name=name,
            detached=bool(name),
            wanted_in_all=sum(pool.wanted for pool in pools.values()),
            # Each of several managers has a target with its own limit.
            max_workers=most if len(list(cluster.managers)) <= 1 else None,
            launching_s=None if since is None else now - since,
            usual_start_s=self._usual_start_s(tag),
            leaving=tuple(
                LeavingWorker(str(ws.name), cluster.departures.why(ws))
                for ws in workers
                if cluster.departures.state(ws) is not None
            ),
            paused=tuple(str(ws.name) for ws in working if ws.status is Status.paused),
            busy_slots=busy,
            slots=sum(_capacity(ws, tag) for ws in working),
            running=running,
            waiting=waiting,
            in_clients=self._in_clients(tag),
        )

    def workers(self, tag: str, pools: Mapping[str, Any]) -> list[WorkerState]:
        """Return a pool's connected workers. Without a tag: those of no pool, or else all."""
        workers = self._scheduler.workers
        if tag:
            return [workers[address] for address in self._scheduler.resources.get(tag) or ()]
        none = [ws for ws in workers.values() if not any(name in pools for name in ws.resources)]
        return none or list(workers.values())

    def _load(
        self, workers: list[WorkerState], tag: str
    ) -> tuple[int, tuple[RunningCall, ...], int]:
        busy = waiting = 0
        oldest: list[tuple[float, TaskState, WorkerState]] = []
        for ws in workers:
            taken = count = 0
            for task, since_s in running_on(ws):
                taken += max(1, slots_of(task.resource_restrictions, tag))
                oldest.append((since_s, task, ws))
                count += 1
            busy += min(taken, _capacity(ws, tag))
            waiting += len(ws.processing) - count
        first = heapq.nlargest(SHOWN_RUNNING, oldest, key=lambda each: each[0])
        return busy, tuple(self.running(task, ws, s) for s, task, ws in first), waiting

    def running(self, task: TaskState, worker: WorkerState, since_s: float) -> RunningCall:
        left = self.left_s(task, since_s)
        return RunningCall(str(task.key), name_of(task), str(worker.name), since_s, left)

    def left_s(self, task: TaskState, since_s: float) -> float | None:
        """Return the expected remaining seconds of a running task, or None if unknown."""
        model = getattr(self._follower(), "model", None)
        tag = next(iter(task.resource_restrictions or ()), UNTAGGED)
        kind = Kind(tag, name_of(task))
        if isinstance(model, TaskModel) and model.knows(kind):
            return model.residual_s(kind, since_s)
        mean = usual_duration(task)
        return None if mean is None else max(0.0, mean - since_s)

    def _adaptive(self, tag: str) -> AdaptiveFacts | None:
        follower = self._follower()
        pool = None if follower is None else follower.pools.get(tag)
        if pool is None:
            return None
        decided = pool.decision
        count, reason = (None, "") if decided is None else (decided.workers, decided.reason)
        return AdaptiveFacts(pool.minimum, pool.maximum, count, reason)

    def _usual_start_s(self, tag: str) -> float | None:
        offering = [known for known in self._cluster.attachments() if tag in known.pools]
        expected = [Starting(**known.starting).startup_s for known in offering]
        starts = self._starts.get(tag)
        default = min(expected, default=0.0)
        return (starts.typical_s(default) if starts else default) or None

    def _in_clients(self, tag: str) -> int:
        relay = getattr(self._scheduler, "relay", None)
        return 0 if relay is None else sum(relay.backlog(tag).values())


def running_on(worker: WorkerState) -> Iterator[tuple[TaskState, float]]:
    """Yield the tasks that run on a worker, each with its running time in seconds.
    Workers report them with each heartbeat. Tasks sent since then count as running, as many as the
    worker has free slots for.
    """
    since = max(0.0, time.time() - worker.last_seen)
    free = dict(worker.resources)
    named = [task for task in worker.executing if task.processing_on is worker]
    threads = worker.nthreads - len(named)
    for task in named:
        _take(task, free)
        yield task, worker.executing[task] + since
    if len(worker.processing) == len(named):
        return
    if threads <= 0:
        return
    # Tasks are sent in the order of their priorities, except the last ones. There may be many.
    sent = islice(worker.processing, len(named) + threads + LOOKED_SENT)
    others = (task for task in sent if task not in worker.executing)
    for task in heapq.nsmallest(threads, others, key=lambda task: task.priority or ()):
        if _take(task, free):
            yield task, 0.0


def _take(task: TaskState, free: dict[str, float]) -> bool:
    """Take a task's resources from the free ones. Return False if there are not enough."""
    asked = task.resource_restrictions or {}
    enough = all(free.get(name, 0) >= amount for name, amount in asked.items())
    for name, amount in asked.items():
        free[name] = free.get(name, 0) - amount
    return enough


def name_of(task: TaskState) -> str:
    """Return the shortened name of a task in the manifest, or of its function."""
    return short_name(str((task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name))


def _capacity(worker: WorkerState, tag: str) -> int:
    return int(worker.resources.get(tag, 0)) if tag else worker.nthreads
