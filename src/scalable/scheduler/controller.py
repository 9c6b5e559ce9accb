"""Scheduler plugin that keeps the pools at their desired sizes and can stop the cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.versions import get_versions
from tornado.ioloop import PeriodicCallback

from scalable.dask_compat.scheduler import count_tasks_without_worker, workers_by_what_they_told
from scalable.dask_compat.scheduler_extensions import keep_shuffles_in_pools
from scalable.errors import ClusterError
from scalable.model.clusters import PoolStatus, pools_from_dict, pools_to_dict
from scalable.protocol.events import Event
from scalable.protocol.handlers import Change, Handler, HeartbeatAnswer, offer, refused_heartbeat
from scalable.protocol.operations import CONTROLLER, ENDING_TOPIC, MANAGER_KEY
from scalable.protocol.pools import UNTAGGED, AttachAnswer, Attachment, shown
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.adaptation import Adaptation
from scalable.scheduler.code_store import CodeStore
from scalable.scheduler.explaining import Explainer, WaitingCalls
from scalable.scheduler.limits import Lifetime, Limits, Spending
from scalable.scheduler.managers import LEASE_S, AttachedManager, AttachedManagers, Demand
from scalable.scheduler.overviews import Overviews, WorkerRows
from scalable.scheduler.pool_facts import PoolCounts, Running
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.task_views import CallViews
from scalable.scheduler.worker_losses import WorkerLosses
from scalable.scheduler.worker_removals import WorkerRemovals
from scalable.views.impossible import NOBODY, NOT_YET, words_of_lost

logger = logging.getLogger("scalable.scheduler")

CHECK_INTERVAL_S = 1.0
#: Seconds that managers have to stop their units (the processes or jobs that provide workers) when
#: the cluster stops. After that the scheduler closes.
END_TIMEOUT_S = 30.0
#: Seconds to send the last messages before the scheduler closes its connections to clients.
TELL_S = 0.02


class Controller(SchedulerPlugin):
    """Plugin that keeps the desired worker counts and the managers, and logs why tasks wait.
    ``close_with`` closes the scheduler of a detached cluster. ``on_change`` is called often, from
    any thread, when the status may have changed.
    """

    name = CONTROLLER
    idempotent = True

    def __init__(
        self,
        scheduler: Scheduler,
        demand: Demand | None = None,
        managers: AttachedManagers | None = None,
        *,
        limits: Limits | None = None,
        close_with: Callable[[], Any] | None = None,
        expected: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.demand = demand or Demand()
        self.managers = AttachedManagers() if managers is None else managers
        self.lifetime = Lifetime(scheduler, limits or Limits())
        self.removals = WorkerRemovals(scheduler)
        self.counts = PoolCounts(scheduler, self.demand, self.managers, self.removals)
        self.spending = Spending(scheduler, self.demand, self.managers)
        self.ending: str | None = None
        self.event_listeners: list[Callable[[Event], None]] = [WorkerLosses.of(scheduler).event]
        self.on_change: Callable[[], None] = lambda: None
        #: Number of managers that the creator of the cluster has started.
        self.expected = expected
        self._status = Status(self)
        self._close_with = close_with
        self.sharing = Sharing(self)
        self.manager_rpc = ManagerRpc(self)
        self._end_by = 0.0
        self._unmanaged = UnmanagedWorkers(self)
        self.overviews = Overviews(self)
        #: Scales the adaptive pools.
        self.adaptation = Adaptation(self)
        self._explainer = Explainer(self, self.overviews.recent)
        self._waiting = WaitingCalls(scheduler, self._explainer.pools)
        self.event_listeners.append(self._waiting.event)
        if isinstance(retrying := getattr(scheduler, "retrying", None), Retrying):
            retrying.may_have_workers = self.may_have_workers
        self._versions = WorkerVersions()
        WorkerRows(self)
        CallViews(scheduler, self._explainer, self.overviews.recent)
        self._offer_handlers()
        # Clients check this entry before they call a handler, because a scheduler logs a traceback
        # when a client calls a handler that does not exist.
        scheduler.set_metadata(keys=[self.name], value=True)
        keep_shuffles_in_pools(scheduler)
        # In separate turns of the event loop: both iterate over all workers.
        interval_ms = CHECK_INTERVAL_S * 1000
        self._check = PeriodicCallback(self._tick, interval_ms)
        self._sampling = PeriodicCallback(self.overviews.sample, interval_ms)
        self._check.start()
        self._sampling.start()

    def _offer_handlers(self) -> None:
        removals = self.removals
        offer(
            self.scheduler,
            {
                Handler.GIVE_UP: removals.give_up,
                Handler.BEGIN: removals.records.begin,
                Handler.NOTICE: removals.notice,
                Handler.POOLS: self._pools_remotely,
                Handler.STATUS: self.status,
                Handler.SCALE: self.scale,
                Handler.APPLY: self.apply,
                Handler.ADAPT: self._adapt_remotely,
                Handler.END: self.end,
            },
        )

    async def before_close(self) -> None:
        """Notify clients before the process of an embedded cluster closes the cluster."""
        if self.ending is None and self.scheduler.client_comms:
            self._tell_clients("the process that started it has closed it")
            await asyncio.sleep(TELL_S)  # Dask drops messages that are not sent by then

    async def close(self) -> None:
        self._check.stop()
        self._sampling.stop()
        self.adaptation.end(*self.adaptation.pools)
        self.removals.abandon()
        self.spending.end()

    # For clients --------------------------------------------------------------------------------

    def pools(self) -> dict[str, PoolStatus]:
        """Map tags to the status of each pool, summed over the managers."""
        return self.counts.pools()

    def _pools_remotely(self) -> dict[str, dict[str, Any]]:
        return pools_to_dict(self.pools())

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set the desired counts of some pools, and return the counts before and after.
        A pool stops being adaptive if ``source`` is ``"manual"`` or ``"decision"``. An unknown pool
        or an invalid count raises ClusterError and changes nothing.
        """
        before = self.demand.scale(counts, self.pools(), source=source, reason=reason)
        if source in ("manual", "decision"):
            self.keep_counts(*counts, why="its count was set")
        self.sharing.share(time.monotonic())
        self.on_change()
        return {"before": before, "after": dict(counts)}

    def apply(
        self,
        add: Mapping[str, int],
        remove: Mapping[str, int],
        active: Mapping[str, int],
        reason: str,
    ) -> Change:
        """Change desired counts by the fields of a ScaleDecision. May raise ClusterError."""
        decision = ScaleDecision(add, remove, reason, active_workers=active)
        counts = self.demand.decided(decision, self.pools())
        return self.scale(counts, source="decision", reason=reason)

    def adapt(
        self,
        tag: str,
        minimum: int = 0,
        maximum: int | None = None,
        *,
        enabled: bool = True,
        **options: Any,
    ) -> Any:
        """Make a pool adaptive or fixed, as :meth:`PoolCluster.adapt` does."""
        if enabled:
            return self.adaptation.begin(tag, minimum, maximum, **options)
        self.keep_counts(tag, why="adapt was called with enabled=False")
        return None

    def keep_counts(self, *tags: str, why: str) -> None:
        self.adaptation.end(*tags, why=why)

    def _adapt_remotely(self, **arguments: Any) -> None:
        self.adapt(**arguments)  # its result cannot be sent

    def end(self, reason: str = "it was stopped on request") -> None:
        """Stop the managers, then the scheduler. Raises ClusterError for an embedded cluster."""
        if self._close_with is None:
            raise ClusterError(
                "this cluster cannot be stopped from outside: it stops with the process that "
                "started it"
            )
        if self.ending is None:
            logger.info("the cluster is stopping: %s", reason)
            self.ending, self._end_by = reason, time.monotonic() + END_TIMEOUT_S
            self._tell_clients(reason)
            self.on_change()

    def _tell_clients(self, reason: str) -> None:
        name = getattr(self.scheduler, "cluster_name", "")
        self.scheduler.log_event(ENDING_TOPIC, {"name": name, "reason": reason})

    def status(self) -> dict[str, Any]:
        return {**self._status.snapshot(), "adaptive": self.adaptive_bounds()}

    def adaptive_bounds(self) -> dict[str, tuple[int, int | None]]:
        pools = self.adaptation.pools.items()
        return {tag: (pool.minimum, pool.maximum) for tag, pool in pools}

    def may_have_workers(self, tag: str) -> bool:
        """Return whether a pool has a desired count above zero, or is adaptive and may grow."""
        if (bounds := self.adaptive_bounds().get(tag)) is not None:
            return bounds[1] != 0
        pool = self.counts.pools().get(tag)
        return pool is not None and pool.wanted > 0

    @property
    def awaits_managers(self) -> bool:
        """True while the cluster waits for the first of its expected managers."""
        return self._status.awaits_managers

    # For adaptive scaling -------------------------------------------------------------------------

    def attachments(self) -> list[Attachment]:
        return [manager.attachment for manager in self.managers]

    # Periodic check -------------------------------------------------------------------------------

    def _tick(self) -> None:
        now, running = time.monotonic(), self.counts.running()
        self.spending.look(self.counts.pools(running))
        pools = self.counts.pools(running)
        self.counts.look(pools)
        self._waiting.look(pools)
        self.sharing.share(now, running)
        self.removals.drain(self._unmanaged.look(now))
        if self._close_with is not None and self.ending is None:
            reason = self.lifetime.look(self.demand.changed_at)
            if reason is not None:
                self.end(reason)
        left = any(manager.state(now) != "lost" for manager in self.managers)
        if self.ending is not None and (now > self._end_by or not left) and self._close_with:
            logger.debug("the scheduler closes: %s", self.ending)
            self._close_with()
        self.on_change()

    # Hooks of the scheduler -----------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        ws = scheduler.workers[worker]
        logger.debug("worker %s connected from %s", ws.name, worker)
        ws.versions = self._versions.shared(ws.versions)
        self._versions.compare(str(ws.name), ws.versions)
        self.counts.connected(ws)
        self.on_change()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        logger.debug("worker at %s left", worker)
        self.on_change()


# Manager RPC --------------------------------------------------------------------------------------


class ManagerRpc:
    """Takes the reports of a cluster's managers and answers with their orders."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        removals = cluster.removals
        offer(
            cluster.scheduler,
            {
                Handler.ATTACH: self.attach,
                Handler.HEARTBEAT: self.heartbeat,
                Handler.LEAVE: self.leave,
                Handler.DRAIN: removals.drain,
                Handler.RESUME: removals.resume,
                Handler.WITHHOLD_WORK: removals.records.withhold_work,
                Handler.ALLOW_WORK: removals.records.allow_work,
                Handler.EXCUSE_LOSSES: WorkerLosses.of(cluster.scheduler).excuse_losses,
            },
        )

    def attach(self, instead_of: str | None = None, **fields: Any) -> AttachAnswer:
        """Attach a manager. ``instead_of`` is the nonce of the process that it replaces."""
        cluster, attachment = self._cluster, Attachment(**fields)
        if cluster.ending is not None:
            reason = f"the cluster is stopping: {cluster.ending}"
            return {"accepted": False, "reason": reason, "holder": None}
        answer = cluster.managers.attach(attachment, time.monotonic(), instead_of)
        if answer["accepted"]:
            logger.info("manager %r is attached", attachment.manager)
            cluster.spending.price(attachment.manager, attachment.prices)
            code = getattr(cluster.scheduler, "code", None)
            if not attachment.shares_files and isinstance(code, CodeStore):
                code.carry()
            cluster.sharing.share(time.monotonic())
            cluster.on_change()
        else:
            logger.info("manager %r is refused: %s", attachment.manager, answer["reason"])
        return answer

    def heartbeat(
        self,
        manager: str,
        nonce: str,
        pools: dict[str, dict[str, Any]],
        workers: Iterable[str] = (),
        events: Iterable[Event] = (),
        charges: Mapping[str, Sequence[Any]] | None = None,
    ) -> HeartbeatAnswer:
        """Store a manager's report, and return its orders and the state of its workers.
        ``charges`` maps charged units to fields of :class:`~scalable.pricing.metering.Charge`, or
        is None if the manager does not report them.
        """
        cluster, known = self._cluster, list(workers)
        if not cluster.managers.beat(
            manager, nonce, pools_from_dict(pools), known, time.monotonic()
        ):
            logger.debug("heartbeat of manager %r is refused: another process has its id", manager)
            return refused_heartbeat()
        if charges is not None:
            cluster.spending.report(manager, charges)
        for event in events:
            for listener in cluster.event_listeners:
                listener(event)
        cluster.on_change()
        prefixes = cluster.scheduler.task_prefixes.values()
        return {
            "known": True,
            "workers": cluster.counts.views(manager, set(known)),
            "longest_s": max((p.duration_average for p in prefixes), default=0.0),
            "orders": cluster.demand.orders(manager),
            "end": cluster.ending is not None,
            "dismissed": cluster.removals.records.dismissed(known),
            "lost_at_work": cluster.removals.records.lost_at_work(known),
            "counts_costs": cluster.spending.counts,
        }

    def leave(self, manager: str, nonce: str, gone: bool = True) -> None:
        """Record that a manager is leaving (``gone=False``) or has left (``gone=True``)."""
        cluster = self._cluster
        if cluster.managers.leave(manager, nonce, gone=gone):
            logger.info("manager %r %s", manager, "has left" if gone else "is leaving")
            if gone:
                cluster.spending.left(manager)
        cluster.sharing.share(time.monotonic())
        cluster.on_change()


# Sharing ------------------------------------------------------------------------------------------

#: Seconds to wait, once the first manager is attached, for the other expected managers. Only then
#: are the desired counts divided among the managers.
GATHER_S = 10.0


class Sharing:
    """Divides the desired worker counts among the managers that have attached."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._gather_by: float | None = None

    def share(self, now: float, running: Running | None = None) -> None:
        """Divide the desired counts once the expected managers have attached, or after a wait."""
        if self._gathers(now):
            return
        cluster = self._cluster
        running = cluster.counts.running() if running is None else running
        cluster.demand.share(cluster.managers.tiers(running, now))

    def _gathers(self, now: float) -> bool:
        """Return whether to wait for expected managers."""
        attached = len(self._cluster.managers)
        if self._gather_by is None and attached:
            self._gather_by = now + GATHER_S
        if attached >= self._cluster.expected:
            self._gather_by = now
        return self._gather_by is not None and now < self._gather_by


# Status -------------------------------------------------------------------------------------------


class Status:
    """Builds snapshots of the status of one cluster."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._was_ready = False

    def snapshot(self) -> dict[str, Any]:
        """Return the cluster's state and counts."""
        cluster, scheduler = self._cluster, self._cluster.scheduler
        now = time.monotonic()
        running = cluster.counts.running()
        pools = {tag: p for tag, p in cluster.counts.pools(running).items() if tag != UNTAGGED}
        for tag, total in cluster.demand.totals.items():
            if tag != UNTAGGED and tag not in pools:
                pools[tag] = PoolStatus(wanted=total)
        managers = [_manager_row(manager, running, now) for manager in cluster.managers]
        state, reason = self._state(pools, managers)
        ends_at, idle_ends_at = cluster.lifetime.ends_at()
        workers = scheduler.workers.values()
        return {
            "written_at": time.time(),
            "address": scheduler.address if scheduler.listeners else None,
            "state": state,
            "reason": reason,
            "pools": pools_to_dict(pools),
            "managers": managers,
            "ends_at": ends_at,
            "idle_ends_at": idle_ends_at,
            "cost": cluster.spending.status(),
            "tasks": {
                "processing": sum(len(ws.processing) for ws in workers),
                "waiting": count_tasks_without_worker(scheduler),
            },
        }

    @property
    def awaits_managers(self) -> bool:
        """True while the cluster waits for the first of its expected managers."""
        cluster = self._cluster
        return bool(cluster.expected) and not self._was_ready and not cluster.managers

    def _state(  # noqa: PLR0911 - a list of cases, the first that holds
        self, pools: Mapping[str, PoolStatus], managers: list[dict[str, Any]]
    ) -> tuple[str, str | None]:
        if self._cluster.ending is not None:
            return "deleting", self._cluster.ending
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


# Unmanaged ----------------------------------------------------------------------------------------


class UnmanagedWorkers:
    """Finds the workers that have to retire because no manager takes care of them."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._lost: set[str] = set()

    def look(self, now: float) -> dict[str, str]:
        """Map workers that must retire to the reason. ``now`` is in monotonic seconds."""
        cluster, managers = self._cluster, self._cluster.managers
        strangers = managers.strangers(cluster.counts.claims(), now)
        for worker in strangers:
            logger.warning("worker %s is drained: its manager has no record of it", worker)
        lost = managers.lost(now)
        for manager in lost - self._lost:
            logger.info("manager %r is lost: it has sent no heartbeat for %g s", manager, LEASE_S)
        self._lost = lost
        silent = managers.silent(cluster.lifetime.limits.manager_grace_s, now)
        silent_words = "its manager no longer reports, and it has no tasks"
        told = workers_by_what_they_told(cluster.scheduler, MANAGER_KEY) if silent else ()
        idle = {
            str(worker.name): silent_words
            for worker, manager in told
            if manager in silent and not worker.processing
        }
        return idle | dict.fromkeys(strangers, "its manager has no record of it")


# Versions -----------------------------------------------------------------------------------------

#: Packages whose versions matter, because they encode and decode tasks between processes.
COMPARED = frozenset({"python", "dask", "distributed", "msgpack", "cloudpickle"})


class WorkerVersions:
    """Compares package versions of workers with the scheduler's, and logs each difference once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._sets: dict[str, dict[str, Any]] = {}

    def compare(self, worker: str, theirs: Mapping[str, Any]) -> None:
        """Log a warning if the worker's versions differ, since pickled tasks may then fail."""
        told = theirs.get("packages") or {}
        differing = [
            f"{package} {told[package]} there, {version} here"
            for package, version in self._packages.items()
            if package in COMPARED and told.get(package) not in (None, version)
        ]
        if differing and (words := "; ".join(differing)) not in self._logged:
            self._logged.add(words)
            logger.warning("worker %s has other versions: %s", worker, words)

    def shared(self, theirs: dict[str, Any]) -> dict[str, Any]:
        """Return the stored copy of these versions, so that all workers share one object."""
        return self._sets.setdefault(repr(theirs), theirs)

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        packages: Mapping[str, str] = get_versions()["packages"]
        return packages
