"""Scheduler plug-in that keeps the pools at their desired sizes and can stop the cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import WorkerState
from tornado.ioloop import PeriodicCallback

from scalable.errors import ClusterError
from scalable.protocol.attachments import Attachment
from scalable.protocol.dask_seams.shuffles import keep_shuffles_in_pools
from scalable.protocol.events import Event
from scalable.protocol.handlers import Change, Handler, offer
from scalable.protocol.operations import CONTROLLER, ENDING_TOPIC
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.attendance import Attendance
from scalable.scheduler.counts import PoolCounts
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.explaining import Explainer
from scalable.scheduler.following import FollowedPools, LoadFollower
from scalable.scheduler.lifetime import Lifetime, Limits
from scalable.scheduler.managers import Managers
from scalable.scheduler.overview.call_views import CallViews
from scalable.scheduler.overview.overviews import Overviews
from scalable.scheduler.overview.worker_rows import WorkerRows
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.sharing import Sharing
from scalable.scheduler.spending import Spending
from scalable.scheduler.status import Status
from scalable.scheduler.unmanaged import UnmanagedWorkers
from scalable.scheduler.versions import Versions
from scalable.scheduler.waiting import WaitingCalls
from scalable.spec.clusters import PoolStatus, pools_to_dict

logger = logging.getLogger("scalable.scheduler")

CHECK_INTERVAL_S = 1.0
#: Seconds that managers have to stop their units (the processes or jobs that bring workers) when
#: the cluster stops. After that the scheduler closes.
END_TIMEOUT_S = 30.0
#: Seconds for messages to leave before the scheduler breaks its connections to clients.
TELL_S = 0.02


class Controller(SchedulerPlugin):
    """Plug-in that keeps the desired worker counts and the managers, and logs why tasks wait.
    ``close_with`` closes the scheduler, for detached clusters that clients may stop.
    ``follow_with`` makes the object that scales adaptive pools, when it is first needed; None
    disables adaptive scaling. ``expected`` is the number of managers that the cluster starts with.
    ``on_change`` is called, from any thread and often, when :meth:`status` may have changed.
    ``ending`` is the reason why the cluster is stopping, or None.
    """

    name = CONTROLLER
    idempotent = True

    def __init__(
        self,
        scheduler: Scheduler,
        demand: Demand | None = None,
        managers: Managers | None = None,
        *,
        limits: Limits | None = None,
        close_with: Callable[[], Any] | None = None,
        expected: int = 0,
        follow_with: Callable[[FollowedPools], LoadFollower] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.demand = demand or Demand()
        self.managers = managers or Managers()
        self.lifetime = Lifetime(scheduler, limits or Limits())
        self.departures = Departures(scheduler)
        self.counts = PoolCounts(scheduler, self.demand, self.managers, self.departures)
        self.spending = Spending(scheduler, self.demand, self.managers)
        self.ending: str | None = None
        lost = getattr(scheduler, "lost_workers", None)
        self.event_listeners: list[Callable[[Event], None]] = [] if lost is None else [lost.event]
        self.on_change: Callable[[], None] = lambda: None
        parts = self.demand, self.managers, self.counts, self.lifetime, self.spending
        self._status = Status(scheduler, *parts, expected=expected)
        self._close_with = close_with
        self._sharing = Sharing(self.demand, self.managers, self.counts, expected)
        self.attendance = Attendance(self, self._sharing)
        self._end_by = 0.0
        self._unmanaged = UnmanagedWorkers(scheduler, self.managers, self.counts, self.lifetime)
        self.overviews = Overviews(self)
        self._explainer = Explainer(self, lambda: self._follower, self.overviews.recent)
        self._waiting = WaitingCalls(scheduler, self._explainer.pools)
        self.event_listeners.append(self._waiting.event)
        if isinstance(retrying := getattr(scheduler, "retrying", None), Retrying):
            retrying.may_have_workers = self.may_have_workers
        self._versions = Versions()
        self._follow_with = follow_with
        self._follower: LoadFollower | None = None
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
        departures = self.departures
        offer(
            self.scheduler,
            {
                Handler.GIVE_UP: departures.give_up,
                Handler.BEGIN: departures.begin,
                Handler.NOTICE: departures.notice,
                Handler.POOLS: self._pools_remotely,
                Handler.STATUS: self.status,
                Handler.SCALE: self.scale,
                Handler.APPLY: self.apply,
                Handler.ADAPT: self._adapt_remotely,
                Handler.END: self.end,
            },
        )

    @property
    def adaptation(self) -> LoadFollower:
        """Object that scales the adaptive pools, made at first access.
        Raises ClusterError if the scheduler was started without adaptive scaling.
        """
        if self._follower is None:
            if self._follow_with is None:
                raise ClusterError(
                    "the pools of this cluster cannot follow their load: its scheduler was "
                    "started without adaptive scaling"
                )
            self._follower = self._follow_with(self)
        return self._follower

    async def before_close(self) -> None:
        """Notify the clients of an embedded cluster that its process closes it."""
        if self.ending is None and self.scheduler.client_comms:
            self._tell_clients("the process that started it has closed it")
            await asyncio.sleep(TELL_S)  # Dask drops messages that are not sent by then

    async def close(self) -> None:
        self._check.stop()
        self._sampling.stop()
        if self._follower is not None:
            self._follower.end(*self._follower.pools)
        self.departures.abandon()
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
        A pool stops being adaptive if ``source`` is ``"manual"`` or ``"decision"``. For an unknown
        pool or a count that is not allowed, raises ClusterError and changes nothing.
        """
        before = self.demand.scale(counts, self.pools(), source=source, reason=reason)
        if source in ("manual", "decision"):
            self.keep_counts(*counts, why="its count was set")
        self._sharing.share(time.monotonic())
        self.on_change()
        return {"before": before, "after": dict(counts)}

    def apply(
        self,
        add: Mapping[str, int],
        remove: Mapping[str, int],
        active: Mapping[str, int],
        reason: str,
    ) -> Change:
        """Add workers to some pools and remove workers from others, as a :class:`ScaleDecision`.
        For an unknown pool, raises ClusterError and changes nothing.
        """
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
        if self._follower is not None:
            self._follower.end(*tags, why=why)

    def _adapt_remotely(self, **arguments: Any) -> None:
        self.adapt(**arguments)  # its result cannot be sent

    def end(self, reason: str = "its end was requested") -> None:
        """Stop the cluster: managers stop their units and leave, then the scheduler closes.
        Raises ClusterError for a cluster that is not detached, which stops with its process.
        """
        if self._close_with is None:
            raise ClusterError(
                "this cluster cannot be ended from outside: it ends with the process that started "
                "it"
            )
        if self.ending is None:
            logger.info("the cluster ends: %s", reason)
            self.ending, self._end_by = reason, time.monotonic() + END_TIMEOUT_S
            self._tell_clients(reason)
            self.on_change()

    def _tell_clients(self, reason: str) -> None:
        name = getattr(self.scheduler, "cluster_name", "")
        self.scheduler.log_event(ENDING_TOPIC, {"name": name, "reason": reason})

    def status(self) -> dict[str, Any]:
        return {**self._status.snapshot(self.ending), "adaptive": self.adaptive_bounds()}

    def adaptive_bounds(self) -> dict[str, tuple[int, int | None]]:
        pools = {} if self._follower is None else self._follower.pools
        return {tag: (pool.minimum, pool.maximum) for tag, pool in pools.items()}

    def may_have_workers(self, tag: str) -> bool:
        """Return whether a pool has a desired count above zero, or is adaptive and may grow."""
        if (bounds := self.adaptive_bounds().get(tag)) is not None:
            return bounds[1] != 0
        pool = self.counts.pools().get(tag)
        return pool is not None and pool.wanted > 0

    @property
    def awaits_managers(self) -> bool:
        """True while managers that the cluster starts with have not attached yet."""
        return self._status.awaits_managers

    # For adaptive scaling -------------------------------------------------------------------------

    def attachments(self) -> list[Attachment]:
        return [manager.attachment for manager in self.managers]

    def leaves(self, worker: WorkerState) -> bool:
        return self.departures.state(worker) is not None

    # Periodic check -------------------------------------------------------------------------------

    def _tick(self) -> None:
        now, running = time.monotonic(), self.counts.running()
        self.spending.look(self.counts.pools(running))
        self._waiting.look(self.counts.pools(running))
        self._sharing.share(now, running)
        self.departures.drain(self._unmanaged.look(now))
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

    def log_event(self, topic: Any, msg: Any) -> None:
        self.departures.log_event(topic, msg)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        ws = scheduler.workers[worker]
        logger.debug("worker %s connected from %s", ws.name, worker)
        ws.versions = self._versions.shared(ws.versions)
        self._versions.compare(str(ws.name), ws.versions)
        self.departures.connected(ws)
        self._explainer.pools.connected(ws)
        if self._follower is not None:
            self._follower.connected(ws)
        self.on_change()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        logger.debug("worker at %s left", worker)
        self.departures.left(worker)
        self.on_change()
