"""The worker manager that lives in the same process as the scheduler.

A *unit* is one job, process or object that brings one worker or a group of workers.
"""

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
from scalable.protocol.attachments import Attachment
from scalable.protocol.events import Event
from scalable.protocol.pools import UNTAGGED
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.controller import Controller
from scalable.scheduler.demand import Demand
from scalable.scheduler.following import FollowedPools, LoadFollower
from scalable.scheduler.managers import Managers
from scalable.spec import Starting

#: Id of the embedded manager.
EMBEDDED = "embedded"


class EmbeddedManager:
    """The worker manager of a cluster in the user's process, with the cluster's wanted counts.

    Parameters
    ----------
    provider
        Name of the provider that starts the workers.
    starting
        Time and price of starting one worker.
    start_timeout
        Seconds within which the workers of a started unit have to connect.

    Attributes
    ----------
    incarnation
        Short random text that is part of the name of each unit.
    demand, managers
        Wanted numbers of workers, and the managers that are attached to the cluster.
    inventory, reconciler
        Units of the manager, and the loop that starts and stops them.
    entries
        Launcher of units that are Python objects.
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
        # The embedded manager is attached from the beginning and never detaches.
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
        """Add pools without workers."""
        for pool in pools:
            self.inventory.add_pool(pool)
            self.managers.offer(EMBEDDED, pool.tag, {"slots": pool.slots, **pool.shape})

    def price(
        self, prices: Mapping[str, Mapping[str, float]], controller: Controller | None
    ) -> None:
        """Set the prices of workers; to be called in the event loop.

        Parameters
        ----------
        prices
            Tag -> price, as in an :class:`~scalable.protocol.handlers.Attachment`.
        controller
            The cluster's controller; None before the cluster is started.
        """
        self.managers.price(EMBEDDED, prices)
        if controller is not None:
            controller.spending.price(EMBEDDED, prices)

    def start(self, scheduler: Scheduler, comm: Any, security: Any) -> None:
        """Start the reconciler in the running event loop.

        Parameters
        ----------
        scheduler
            The cluster's scheduler. A :class:`Controller` is added unless the scheduler has one.
        comm
            Dask's ``rpc`` object for the scheduler.
        security
            Credentials for workers that are Python objects.
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
        """Set the wanted numbers of workers of pools; units are requested a moment later.

        Parameters
        ----------
        counts
            Tag -> absolute number of workers.
        controller
            The cluster's controller; None before the cluster is started.
        source, reason
            Origin (``plan``, ``manual`` or ``decision``) and reason of the change, for the record.

        Raises
        ------
        ClusterError
            When there is no such pool, or a count is negative or not an integer; nothing changes
            then.
        """
        for tag, count in counts.items():
            self.inventory.check(tag, count)
        if controller is not None:
            controller.keep_counts(*counts, why="it was scaled")
        status = self.inventory.status()
        self.demand.scale(counts, status, source=source, reason=reason)
        # The new counts are visible at once and not only after the next heartbeat.
        running = {EMBEDDED: {tag: pool.running for tag, pool in status.items()}}
        self.demand.share(self.managers.tiers(running, time.monotonic()))
        self.inventory.obey(self.demand.orders(EMBEDDED))
        if controller is not None:
            controller.on_change()

    def decided(self, decision: ScaleDecision) -> dict[str, int]:
        """Return tag -> wanted number of workers after a scaler's decision."""
        pools = self.inventory.status()
        return self.demand.decided(decision, {tag: pools[tag] for tag in pools if tag != UNTAGGED})

    def discard(self, asked: Iterable[UnitName]) -> None:
        """Remove units from the wanted ones, given names of units or names of their workers."""
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
        """Start missing units and stop unwanted units now, not at the reconciler's next tick.

        Raises
        ------
        ProviderError
            When the batch system or machine refuses a unit permanently.
        """
        await self.reconciler.align()
        await self.entries.started()
        await self.reconciler.reconcile()


def controller_of(scheduler: Any) -> Controller | None:
    """Return the controller of a scheduler; None before it has one."""
    controller: Controller | None = getattr(scheduler, "plugins", {}).get(Controller.name)
    return controller


def _follow_load(cluster: FollowedPools) -> LoadFollower:
    # Imported on demand: most clusters keep their counts.
    from scalable.scheduler.adaptation import Adaptation

    return Adaptation(cluster)
