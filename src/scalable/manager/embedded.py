"""The worker manager that runs in the same process as the scheduler."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from distributed import Scheduler

from scalable.liveness import identify_process
from scalable.manager.entries import EntryLauncher
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.manager.scheduler_link import RpcLink
from scalable.model import Starting
from scalable.protocol.events import Event
from scalable.protocol.pools import UNTAGGED, Attachment
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.controller import Controller
from scalable.scheduler.demand import Demand
from scalable.scheduler.following import FollowedPools, LoadFollower
from scalable.scheduler.managers import Managers

#: Id of the embedded manager.
EMBEDDED = "embedded"


class EmbeddedManager:
    """The worker manager of a cluster in the user's process, with the desired counts.
    ``incarnation`` is a short random part of each unit name. ``entries`` launches units that are
    Python objects. Workers of a started unit have to connect within ``start_timeout`` seconds.
    """

    def __init__(self, provider: str, starting: Starting, start_timeout: float) -> None:
        self.incarnation = secrets.token_hex(3)
        self.demand = Demand()
        self.managers = Managers()
        self.entries = EntryLauncher()
        self.listeners: list[Callable[[Event], None]] = []
        self.reconciler = Reconciler(
            self.incarnation, on_event=self._publish, start_timeout=start_timeout
        )
        self.inventory = self.reconciler.inventory
        # The embedded manager is always attached.
        own = Attachment(
            EMBEDDED,
            self.incarnation,
            identity=identify_process(),
            provider=provider,
            pools={},
            starting=asdict(starting),
        )
        self.managers.attach(own, time.monotonic())

    def _publish(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def add_pools(self, pools: Iterable[Pool]) -> None:
        for pool in pools:
            self.inventory.add_pool(pool)
            self.managers.offer(EMBEDDED, pool.tag, {"slots": pool.slots, **pool.shape})

    def price(
        self, prices: Mapping[str, Mapping[str, float]], controller: Controller | None
    ) -> None:
        """Set the workers' prices by tag, in the event loop. No controller before the start."""
        self.managers.price(EMBEDDED, prices)
        if controller is not None:
            controller.spending.price(EMBEDDED, prices)

    def start(self, scheduler: Scheduler, comm: Any, security: Any) -> None:
        """Start the reconciler in the running event loop. Idempotent.
        A :class:`Controller` is added unless the scheduler has one. ``security`` is for workers
        that are Python objects.
        """
        if self.reconciler.link is not None:
            return
        if controller_of(scheduler) is None:
            scheduler.add_plugin(
                Controller(scheduler, self.demand, self.managers, follow_with=_follow_load)
            )
        self.listeners.append(self._tell_scheduler(scheduler))
        contact = getattr(scheduler, "contact_address", None) or scheduler.address
        self.entries.scheduler_address = contact
        self.entries.security = security
        self.reconciler.start(RpcLink(comm, EMBEDDED, self.incarnation))

    @staticmethod
    def _tell_scheduler(scheduler: Any) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            controller = controller_of(scheduler)
            for listener in () if controller is None else controller.event_listeners:
                listener(event)

        return tell

    def want(
        self, counts: Mapping[str, int], controller: Controller | None, *, source: str, reason: str
    ) -> None:
        """Set the desired worker counts of pools. Units are requested a moment later.
        ``source`` (``plan``, ``manual`` or ``decision``) and ``reason`` are recorded. Raises
        ClusterError, and changes nothing, for an unknown pool or a count that is not an integer of
        at least 0.
        """
        for tag, count in counts.items():
            self.inventory.check(tag, count)
        if controller is not None:
            controller.keep_counts(*counts, why="it was scaled")
        status = self.inventory.status()
        self.demand.scale(counts, status, source=source, reason=reason)
        # The new counts are visible at once, not only after the next heartbeat.
        running = {EMBEDDED: {tag: pool.running for tag, pool in status.items()}}
        self.demand.share(self.managers.tiers(running, time.monotonic()))
        self.inventory.obey(self.demand.orders(EMBEDDED))
        if controller is not None:
            controller.on_change()

    def decided(self, decision: ScaleDecision) -> dict[str, int]:
        """Return the desired worker counts by tag after a scaler's decision."""
        pools = self.inventory.status()
        return self.demand.decided(decision, {tag: pools[tag] for tag in pools if tag != UNTAGGED})

    def discard(self, asked: Iterable[UnitName]) -> None:
        """Remove units from the desired ones, given names of units or of their workers."""
        names = set(asked)
        wanted = self.inventory.wanted.spec
        units = self.inventory.existing()
        leaving = dict.fromkeys(
            [
                *(n for n, unit in units.items() if n in names or names & set(unit.worker_names)),
                *(n for n in names if n in wanted),
            ]
        )
        tags = Counter(wanted[n].get("pool", UNTAGGED) for n in leaving if n in wanted)
        self.inventory.discard(leaving)
        for tag, count in tags.items():
            self.demand.settle(EMBEDDED, tag, count)

    async def align(self) -> None:
        """Start missing and stop undesired units now. Raise ProviderError if one is refused."""
        await self.reconciler.align()
        await self.entries.started()
        await self.reconciler.reconcile()


def controller_of(scheduler: Any) -> Controller | None:
    """Return the controller of a scheduler, or None before it has one."""
    controller: Controller | None = getattr(scheduler, "plugins", {}).get(Controller.name)
    return controller


def _follow_load(cluster: FollowedPools) -> LoadFollower:
    # Imported on demand: most clusters keep their counts.
    from scalable.scheduler.adaptation import Adaptation

    return Adaptation(cluster)
