"""Scheduler plugin that keeps the pools at their desired sizes and can stop the cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from types import MethodType
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.versions import get_versions
from tornado.ioloop import PeriodicCallback

from scalable.dask_compat.scheduler import workers_by_what_they_told
from scalable.dask_compat.scheduler_extensions import keep_shuffles_in_pools
from scalable.errors import ClusterError
from scalable.model.clusters import pools_from_dict, pools_to_dict
from scalable.protocol.events import Event
from scalable.protocol.handlers import Change, Handler, HeartbeatAnswer, offer
from scalable.protocol.operations import CONTROLLER, ENDING_TOPIC, MANAGER_KEY, WIRE, other_wire
from scalable.protocol.pools import AttachAnswer, Attachment
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.adaptation import Adaptation
from scalable.scheduler.cluster_state import ClusterState
from scalable.scheduler.code_store import CodeStore
from scalable.scheduler.explaining import TaskViews, WaitingTasks
from scalable.scheduler.managers import LEASE_S
from scalable.scheduler.overviews import Overviews, worker_rows
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.worker_losses import WorkerLosses

logger = logging.getLogger("scalable.scheduler")

CHECK_INTERVAL_S = 1.0
#: Seconds that managers have to stop their units (the processes or jobs that provide workers) when
#: the cluster stops. After that the scheduler closes.
END_TIMEOUT_S = 30.0
#: Seconds to send the last messages before the scheduler closes its connections to clients.
TELL_S = 0.02


class Controller(ClusterState, SchedulerPlugin):
    """Plugin that keeps the desired worker counts and the managers, and logs why tasks wait."""

    name = CONTROLLER
    idempotent = True

    def __post_init__(self) -> None:
        super().__post_init__()
        scheduler = self.scheduler
        self.event_listeners.append(WorkerLosses.of(scheduler).event)
        self._end_by = 0.0
        self._lost_managers: set[str] = set()
        self.overviews = Overviews(self)
        #: Scales the adaptive pools.
        self.adaptation = Adaptation(self)
        self._waiting = WaitingTasks(self, self.overviews)
        self.event_listeners.append(self._waiting.event)
        if isinstance(retrying := getattr(scheduler, "retrying", None), Retrying):
            retrying.may_have_workers = self.may_have_workers
        self._versions = WorkerVersions()
        TaskViews(self, self.overviews)
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

    def _status_with_tasks(self) -> dict[str, Any]:
        return {**self.status(), "tasks": asdict(self.overviews.present().counts)}

    def _offer_handlers(self) -> None:
        removals = self.removals
        offer(
            self.scheduler,
            {
                Handler.GIVE_UP: removals.give_up,
                Handler.BEGIN: removals.records.begin,
                Handler.NOTICE: removals.notice,
                Handler.POOLS: lambda: pools_to_dict(self.pools()),
                Handler.STATUS: self._status_with_tasks,
                Handler.WORKERS: MethodType(worker_rows, self),  # Dask logs the handler's name
                Handler.SCALE: self.scale,
                Handler.APPLY: self.apply,
                # Its result cannot be sent.
                Handler.ADAPT: lambda **options: self.adapt(**options) and None,
                Handler.END: self.end,
                Handler.CREATOR_LIVES: self.creator_lives,
                Handler.ATTACH: self.attach,
                Handler.HEARTBEAT: self.heartbeat,
                Handler.LEAVE: self.leave,
                Handler.DRAIN: removals.drain,
                Handler.RESUME: removals.resume,
                Handler.WITHHOLD_WORK: removals.records.withhold_work,
                Handler.ALLOW_WORK: removals.records.allow_work,
                Handler.EXCUSE_LOSSES: WorkerLosses.of(self.scheduler).excuse_losses,
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
        self.spending.write_rows(last=True)

    # For clients --------------------------------------------------------------------------------

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
        self.adaptation.end(tag, why="adapt was called with enabled=False")
        return None

    def end(self, reason: str = "it was stopped on request") -> None:
        """Stop the managers, then the scheduler. Raises ClusterError for an embedded cluster."""
        if self.close_with is None:
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

    def may_have_workers(self, tag: str) -> bool:
        """Return whether a pool has a desired count above zero, or is adaptive and may grow."""
        if (bounds := self.adaptive_bounds().get(tag)) is not None:
            return bounds[1] != 0
        pool = self.pools().get(tag)
        return pool is not None and pool.wanted > 0

    # For managers ---------------------------------------------------------------------------------

    def attach(self, instead_of: str | None = None, **fields: Any) -> AttachAnswer:
        """Attach a manager. ``instead_of`` is the nonce of the process that it replaces."""
        error = other_wire(fields, f"manager {fields.get('manager')!r}", "the scheduler")
        if error is None and self.ending is not None:
            error = ClusterError(f"the cluster is stopping: {self.ending}")
        if error is not None:
            return {"accepted": False, "reason": str(error), "holder": None}
        fields.pop(WIRE, None)
        attachment = Attachment(**fields)
        answer = self.managers.attach(attachment, time.monotonic(), instead_of)
        if answer["accepted"]:
            logger.info("manager %r is attached", attachment.manager)
            self.spending.price(attachment.manager, attachment.prices)
            code = getattr(self.scheduler, "code", None)
            if not attachment.shares_files and isinstance(code, CodeStore):
                code.carry()
            self.share(time.monotonic())
            self.on_change()
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
    ) -> HeartbeatAnswer | dict[str, Any]:
        """Store a manager's report, and return its orders and the state of its workers.
        ``charges`` maps charged units to fields of :class:`~scalable.pricing.metering.Charge`, or
        is None if the manager does not report them.
        """
        known = list(workers)
        if not self.managers.beat(manager, nonce, pools_from_dict(pools), known, time.monotonic()):
            logger.debug("heartbeat of manager %r is refused: another process has its id", manager)
            return {}
        if charges is not None:
            self.spending.report(manager, charges)
        for event in events:
            for listener in self.event_listeners:
                listener(event)
        self.on_change()
        prefixes = self.scheduler.task_prefixes.values()
        return {
            "workers": self.views(manager, set(known)),
            "longest_s": max((p.duration_average for p in prefixes), default=0.0),
            "orders": self.demand.orders(manager),
            "end": self.ending is not None,
            "counts_costs": self.spending.counts,
        }

    def leave(self, manager: str, nonce: str, gone: bool = True) -> None:
        """Record that a manager is leaving (``gone=False``) or has left (``gone=True``)."""
        if self.managers.leave(manager, nonce, gone=gone):
            logger.info("manager %r %s", manager, "has left" if gone else "is leaving")
            if gone:
                self.spending.left(manager)
        self.share(time.monotonic())
        self.on_change()

    # Periodic check -------------------------------------------------------------------------------

    def _tick(self) -> None:
        now, running = time.monotonic(), self.running()
        self.spending.look(self.pools(running))
        pools = self.pools(running)
        self.look(pools)
        self._waiting.look(pools)
        self.share(now, running)
        self.removals.drain(self._unmanaged(now))
        if self.close_with is not None and self.ending is None:
            reason = self.lifetime.look(self.scheduler, self.demand.changed_at)
            if reason is not None:
                self.end(reason)
        left = any(manager.state(now) != "lost" for manager in self.managers)
        if self.ending is not None and (now > self._end_by or not left) and self.close_with:
            logger.debug("the scheduler closes: %s", self.ending)
            self.close_with()
        self.on_change()

    def _unmanaged(self, now: float) -> dict[str, str]:
        """Map workers that must retire, because no manager takes care of them, to the reason."""
        told = workers_by_what_they_told(self.scheduler, MANAGER_KEY)
        claims = {str(worker.name): manager for worker, manager in told if manager}
        strangers = self.managers.strangers(claims, now)
        for worker in strangers:
            logger.warning("worker %s is drained: its manager has no record of it", worker)
        lost = self.managers.silent(LEASE_S, now)
        for manager in lost - self._lost_managers:
            logger.info("manager %r is lost: it has sent no heartbeat for %g s", manager, LEASE_S)
        self._lost_managers = lost
        silent = self.managers.silent(self.lifetime.manager_grace_s, now)
        silent_words = "its manager no longer reports, and it has no tasks"
        idle = {
            str(worker.name): silent_words
            for worker, manager in told
            if manager in silent and not worker.processing
        }
        return idle | dict.fromkeys(strangers, "its manager has no record of it")

    # Hooks of the scheduler -----------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        ws = scheduler.workers[worker]
        logger.debug("worker %s connected from %s", ws.name, worker)
        ws.versions = self._versions.shared(ws.versions)
        self._versions.compare(str(ws.name), ws.versions)
        self.connected(ws)
        self.on_change()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        logger.debug("worker at %s left", worker)
        self.on_change()


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
