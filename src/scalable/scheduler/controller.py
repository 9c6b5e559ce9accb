"""The scheduler's side of the pools: what is wanted of whom, what is there, and how it ends."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, SchedulerPlugin
from distributed.versions import get_versions
from tornado.ioloop import PeriodicCallback

from scalable.errors import ClusterError
from scalable.protocol.dask_seams.scheduler import tasks_without_worker, told_at_start
from scalable.protocol.events import Event
from scalable.protocol.matching import slots_of
from scalable.protocol.operations import CONTROLLER, MANAGER_KEY
from scalable.protocol.pools import UNTAGGED
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.lifetime import Lifetime, Limits
from scalable.scheduler.managers import Attachment, Managers
from scalable.scheduler.waiting import WaitingCalls
from scalable.spec.clusters import PoolStatus, pools_from_dict, pools_to_dict

if TYPE_CHECKING:
    from scalable.scheduler.adaptation import Adaptation, PoolAdaptive

logger = logging.getLogger("scalable.scheduler")

CHECK_INTERVAL_S = 1.0
#: Managers get so long to end their units before the scheduler closes without them.
END_TIMEOUT_S = 30.0
#: After the first of several expected managers, the others get so long before work is shared.
GATHER_S = 10.0
COMPARED = frozenset({"python", "dask", "distributed", "msgpack", "cloudpickle"})
_ATTACHMENT = frozenset(field.name for field in fields(Attachment))


class Controller(SchedulerPlugin):
    """Declares what is wanted, knows the managers, and lets no call wait in silence.

    Parameters
    ----------
    scheduler
        Beside which it runs.
    demand, managers
        Wanted counts and managers; by default none yet.
    limits
        How long the cluster may live.
    close_with
        Ends the scheduler, where clients may ask for that: detached clusters. None elsewhere.
    expected
        How many managers are to attach: without any the cluster is unmanaged.
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
    ) -> None:
        self.scheduler = scheduler
        self.demand = demand or Demand()
        self.managers = managers or Managers()
        self.lifetime = Lifetime(scheduler, limits or Limits())
        self.departures = Departures(scheduler)
        self.ending: str | None = None
        self.event_listeners: list[Callable[[Event], None]] = []
        self.on_change: Callable[[], None] = lambda: None
        self._close_with = close_with
        self._expected = expected
        self._gather_by: float | None = None
        self._end_by = 0.0
        self._was_ready = False
        self._waiting = WaitingCalls(scheduler)
        self._adaptation: Adaptation | None = None
        self._differences: set[str] = set()
        self._offer_handlers()
        # Clients look here first: asking a scheduler without us would put a traceback in its log.
        scheduler.set_metadata(keys=[self.name], value=True)
        self._check = PeriodicCallback(self._tick, CHECK_INTERVAL_S * 1000)
        self._check.start()

    def _offer_handlers(self) -> None:
        own: dict[str, Callable[..., Any]] = {
            "attach": self.attach,
            "heartbeat": self.heartbeat,
            "leave": self.leave,
            "pools": self._pools_from_afar,
            "status": self.status,
            "scale": self.scale,
            "adapt": self._adapt_from_afar,
            "apply": self.apply,
            "end": self.end,
            "load": self.load,
        }
        workers = ("drain", "bar", "admit", "resume", "forgive")
        own |= {verb: getattr(self.departures, verb) for verb in workers}
        handlers = {f"scalable_{verb}": handler for verb, handler in own.items()}
        self.scheduler.handlers.update(handlers)

    @property
    def adaptation(self) -> Adaptation:
        """The pools that follow their load."""
        if self._adaptation is None:
            # What decides is loaded where it is needed: most clusters keep their counts.
            from scalable.scheduler.adaptation import Adaptation

            self._adaptation = Adaptation(self)
        return self._adaptation

    async def close(self) -> None:
        """Stop with the scheduler."""
        self._check.stop()
        if self._adaptation is not None:
            self._adaptation.end(*self._adaptation.pools)
        self.departures.abandon()

    # For managers -------------------------------------------------------------------------------

    def attach(self, instead_of: str | None = None, **attachment: Any) -> dict[str, Any]:
        """Let a manager in; see :meth:`scalable.scheduler.managers.Managers.attach`."""
        given = {key: value for key, value in attachment.items() if key in _ATTACHMENT}
        if self.ending is not None:
            reason = f"the cluster ends: {self.ending}"
            return {"accepted": False, "reason": reason, "holder": None}
        answer = self.managers.attach(Attachment(**given), time.monotonic(), instead_of)
        if answer["accepted"]:
            logger.info("manager %r is attached", given["manager"])
            self._share()
        return answer

    def heartbeat(
        self,
        manager: str,
        nonce: str,
        pools: dict[str, dict[str, Any]],
        workers: Iterable[str] = (),
        events: Iterable[Event] = (),
    ) -> dict[str, Any]:
        """Take a manager's report; answer with its workers, by name, and its orders."""
        known = list(workers)
        if not self.managers.beat(manager, nonce, pools_from_dict(pools), known, time.monotonic()):
            return {"known": False, "workers": {}, "longest_s": 0.0, "orders": {}, "end": False}
        for event in events:
            for listener in self.event_listeners:
                listener(event)
        self.on_change()
        prefixes = self.scheduler.task_prefixes.values()
        return {
            "known": True,
            "workers": self._views(manager, set(known)),
            "longest_s": max((p.duration_average for p in prefixes), default=0.0),
            "orders": self.demand.orders(manager),
            "end": self.ending is not None,
        }

    def _views(self, manager: str, names: set[str]) -> dict[str, dict[str, Any]]:
        return {
            str(ws.name): {
                "address": ws.address,
                "processing": len(ws.processing),
                "occupancy": ws.occupancy,
                "nbytes": ws.nbytes,
                "drain": self.departures.state(ws),
            }
            for ws in self.scheduler.workers.values()
            if told_at_start(ws, MANAGER_KEY) == manager or str(ws.name) in names
        }

    def leave(self, manager: str, nonce: str, gone: bool = True) -> None:
        """A manager is going to leave, or has left."""
        self.managers.leave(manager, nonce, gone=gone)
        self._share()
        self.on_change()

    def _share(self) -> None:
        now = time.monotonic()
        if not self._gathers(now):
            self.demand.share(self.managers.tiers(self._running(), now))

    def _gathers(self, now: float) -> bool:
        """Whether expected managers are awaited: priorities decide, not who attached first."""
        attached = len(list(self.managers))
        if self._gather_by is None and attached:
            self._gather_by = now + GATHER_S
        if attached >= self._expected:
            self._gather_by = now
        return self._gather_by is not None and now < self._gather_by

    def _running(self) -> dict[str, Counter[str]]:
        """Manager -> tag -> workers that are connected and not leaving.

        Those who name their manager are counted here and now; of others their manager reports.
        """
        running: dict[str, Counter[str]] = {}
        for ws in self.scheduler.workers.values():
            name = told_at_start(ws, MANAGER_KEY)
            if name and self.departures.state(ws) is None:
                counts = running.setdefault(str(name), Counter())
                counts.update(tag for tag in ws.resources if tag in self.demand.totals)
        now = time.monotonic()
        for manager in self.managers:
            name = manager.attachment.manager
            if name not in running:
                told = {} if manager.state(now) == "lost" else manager.report
                running[name] = Counter({t: r.running for t, r in told.items()})
        return running

    # For clients --------------------------------------------------------------------------------

    def pools(self) -> dict[str, PoolStatus]:
        """Return tag -> status, summed over managers."""
        running = self._running()
        pools = self.managers.pools()
        return {tag: self._present(tag, pool, running) for tag, pool in pools.items()}

    def _present(
        self, tag: str, pool: PoolStatus, running: Mapping[str, Mapping[str, int]]
    ) -> PoolStatus:
        """Return a pool's status with what this side knows better than the managers' reports."""
        wanted = self.demand.totals.get(tag, pool.wanted)
        connected = sum(counts.get(tag, 0) for counts in running.values())
        beyond = self.demand.unplaced.get(tag)
        words = f"{beyond} more than its managers may start" if beyond else None
        return dataclasses.replace(
            pool,
            wanted=wanted,
            running=connected,
            # Managers report what is on its way a moment later than workers connect.
            launching=min(pool.launching, max(0, wanted - connected)),
            waiting=pool.waiting or words,
        )

    def _pools_from_afar(self) -> dict[str, dict[str, Any]]:
        return pools_to_dict(self.pools())

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> dict[str, dict[str, int]]:
        """Set how many workers are wanted; the counts before and after.

        Raises
        ------
        ClusterError
            When there is no such pool, or a count is none; nothing changes then.
        """
        before = self.demand.scale(counts, self.pools(), source=source, reason=reason)
        if source in ("manual", "decision"):
            self.keep_counts(*counts, why="it was scaled")
        self._share()
        self.on_change()
        return {"before": before, "after": dict(counts)}

    def apply(
        self,
        add: Mapping[str, int],
        remove: Mapping[str, int],
        active: Mapping[str, int],
        reason: str,
    ) -> dict[str, dict[str, int]]:
        """Carry a decision out; the counts before and after. See :class:`ScaleDecision`.

        Raises
        ------
        ClusterError
            When there is no such pool; nothing changes then.
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
    ) -> PoolAdaptive | None:
        """Let a pool follow its load, or no more; see :meth:`PoolCluster.adapt`."""
        if enabled:
            return self.adaptation.begin(tag, minimum, maximum, **options)
        self.keep_counts(tag, why="it was told so")
        return None

    def keep_counts(self, *tags: str, why: str) -> None:
        """Let pools follow their load no more."""
        if self._adaptation is not None:
            self._adaptation.end(*tags, why=why)

    def _adapt_from_afar(self, **arguments: Any) -> None:
        self.adapt(**arguments)

    def load(self, tag: str) -> int:
        """Slots that the unfinished, ready calls of a pool take; untagged calls under no tag."""
        scheduler = self.scheduler
        count = 0
        for ws in scheduler.workers.values():
            for task in ws.processing:
                count += slots_of(task.resource_restrictions, tag)
        waiting = tasks_without_worker(scheduler)
        return count + sum(slots_of(task.resource_restrictions, tag) for task in waiting)

    def end(self, reason: str = "it was asked to") -> None:
        """End the cluster: managers end their units and leave, then the scheduler closes.

        Raises
        ------
        ClusterError
            When the cluster belongs to a process that did not allow it.
        """
        if self._close_with is None:
            raise ClusterError(
                "this cluster belongs to the process that started it, and ends with that"
            )
        if self.ending is None:
            logger.info("the cluster ends: %s", reason)
            self.ending, self._end_by = reason, time.monotonic() + END_TIMEOUT_S
            self.on_change()

    def status(self) -> dict[str, Any]:
        """Counts of every pool, the managers, and the state of the whole."""
        now = time.monotonic()
        pools = {tag: pool for tag, pool in self.pools().items() if tag != UNTAGGED}
        for tag, total in self.demand.totals.items():
            if tag != UNTAGGED and tag not in pools:
                pools[tag] = PoolStatus(wanted=total)
        running = self._running()
        managers = [
            {
                "id": m.attachment.manager,
                "target": m.attachment.target,
                "provider": m.attachment.provider,
                "state": m.state(now),
                "priority": m.attachment.priority,
                "silent_s": round(now - m.last_seen, 1),
                "pools": {
                    tag: {**report.to_dict(), "running": running[m.attachment.manager][tag]}
                    for tag, report in m.report.items()
                    if tag != UNTAGGED
                },
            }
            for m in self.managers
        ]
        state, reason = self._state(pools, managers)
        ends_at, idle_ends_at = self.lifetime.ends_at()
        return {
            "written_at": time.time(),
            "state": state,
            "reason": reason,
            "pools": pools_to_dict(pools),
            "managers": managers,
            "ends_at": ends_at,
            "idle_ends_at": idle_ends_at,
            "tasks": self._task_counts(),
        }

    def _state(  # noqa: PLR0911 - a list of cases, the first that holds
        self, pools: Mapping[str, PoolStatus], managers: list[dict[str, Any]]
    ) -> tuple[str, str | None]:
        if self.ending is not None:
            return "deleting", self.ending
        lost = [m["id"] for m in managers if m["state"] == "lost"]
        if lost and len(lost) == len(managers):
            return "unmanaged", f"nothing was heard of manager {', '.join(map(repr, lost))}"
        if not managers and (self._was_ready or not self._expected):
            wanted = any(pool.wanted for pool in pools.values())
            return ("unmanaged", "no manager is attached") if wanted else ("running", None)
        if not managers:
            return "starting", "its managers are not there yet"
        for tag, pool in pools.items():
            if pool.reason:
                return "degraded", f"pool {tag!r}: {pool.reason}"
        if lost:
            return "degraded", f"nothing was heard of manager {', '.join(map(repr, lost))}"
        short = [t for t, pool in pools.items() if pool.wanted and not pool.running]
        self._was_ready = self._was_ready or not short
        if short and not self._was_ready:
            return "starting", f"no worker of {', '.join(map(repr, short))} yet"
        return "running", None

    def _task_counts(self) -> dict[str, int]:
        scheduler = self.scheduler
        processing = sum(len(ws.processing) for ws in scheduler.workers.values())
        return {
            "processing": processing,
            "waiting": sum(1 for _ in tasks_without_worker(scheduler)),
        }

    # By itself ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        self._waiting.look(self.pools())
        self._share()
        strangers = self.managers.strangers(self._claims(), now)
        for worker in strangers:
            logger.warning("worker %s belongs to no manager that knows it: it retires", worker)
        silent = self.managers.silent(self.lifetime.limits.manager_grace_s, now)
        idle = [
            str(ws.name)
            for ws in self.scheduler.workers.values()
            if told_at_start(ws, MANAGER_KEY) in silent and not ws.processing
        ]
        self.departures.drain([*strangers, *idle])
        if self._close_with is not None and self.ending is None:
            reason = self.lifetime.look(self.demand.changed_at)
            if reason is not None:
                self.end(reason)
        if self.ending is not None and (now > self._end_by or not self._units_left(now)):
            assert self._close_with is not None
            self._close_with()
        self.on_change()

    def _units_left(self, now: float) -> bool:
        return any(manager.state(now) != "lost" for manager in self.managers)

    def _claims(self) -> dict[str, str]:
        return {
            str(ws.name): told_at_start(ws, MANAGER_KEY)
            for ws in self.scheduler.workers.values()
            if told_at_start(ws, MANAGER_KEY)
        }

    # What the scheduler tells ---------------------------------------------------------------------

    def log_event(self, topic: Any, msg: Any) -> None:
        """Remember which calls a lost worker took with it."""
        self.departures.log_event(topic, msg)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """A worker connected."""
        ws = scheduler.workers[worker]
        self._compare_versions(str(ws.name), ws.versions)
        self.departures.connected(ws)
        if self._adaptation is not None:
            self._adaptation.connected(ws)
        self.on_change()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """A worker left."""
        self.departures.left(worker)
        self.on_change()

    def _compare_versions(self, name: str, theirs: Mapping[str, Any]) -> None:
        """Name what differs between a worker's software and ours: calls travel as pickles."""
        told = theirs.get("packages") or {}
        differing = [
            f"{package} {told[package]} there, {version} here"
            for package, version in self._packages.items()
            if package in COMPARED and told.get(package) not in (None, version)
        ]
        if differing and (words := "; ".join(differing)) not in self._differences:
            self._differences.add(words)
            logger.warning("worker %s has other versions: %s", name, words)

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        packages: Mapping[str, str] = get_versions()["packages"]
        return packages
