"""Answers to managers: attaching, heartbeats and leaving."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from distributed import Scheduler

from scalable.protocol.attachments import AttachAnswer, Attachment
from scalable.protocol.events import Event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.heartbeats import HeartbeatAnswer, refused_heartbeat
from scalable.scheduler.code_store import CodeStore
from scalable.scheduler.counts import PoolCounts
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.managers import Managers
from scalable.scheduler.sharing import Sharing
from scalable.scheduler.spending import Spending
from scalable.spec.clusters import pools_from_dict

logger = logging.getLogger("scalable.scheduler")


class Managed(Protocol):
    """Cluster whose managers are answered, usually a controller."""

    scheduler: Scheduler
    demand: Demand
    managers: Managers
    counts: PoolCounts
    departures: Departures
    spending: Spending
    ending: str | None
    event_listeners: list[Callable[[Event], None]]
    on_change: Callable[[], None]


class Attendance:
    """Takes the reports of a cluster's managers and answers with their orders."""

    def __init__(self, cluster: Managed, sharing: Sharing) -> None:
        self._cluster, self._sharing = cluster, sharing
        departures = cluster.departures
        offer(
            cluster.scheduler,
            {
                Handler.ATTACH: self.attach,
                Handler.HEARTBEAT: self.heartbeat,
                Handler.LEAVE: self.leave,
                Handler.DRAIN: departures.drain,
                Handler.RESUME: departures.resume,
                Handler.WITHHOLD_WORK: departures.withhold_work,
                Handler.ALLOW_WORK: departures.allow_work,
                Handler.EXCUSE_LOSSES: departures.excuse_losses,
            },
        )

    def attach(self, instead_of: str | None = None, **fields: Any) -> AttachAnswer:
        """Attach a manager with the fields of an :class:`~.handlers.Attachment`.
        ``instead_of`` is the nonce of the manager's earlier, stopped process, which this one
        replaces.
        """
        cluster, attachment = self._cluster, Attachment(**fields)
        if cluster.ending is not None:
            reason = f"the cluster ends: {cluster.ending}"
            return {"accepted": False, "reason": reason, "holder": None}
        answer = cluster.managers.attach(attachment, time.monotonic(), instead_of)
        if answer["accepted"]:
            logger.info("manager %r is attached", attachment.manager)
            cluster.spending.price(attachment.manager, attachment.prices)
            code = getattr(cluster.scheduler, "code", None)
            if not attachment.shares_files and isinstance(code, CodeStore):
                code.carry()
            self._sharing.share(time.monotonic())
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
        """Store a manager's report, and return the state of its workers and its orders.
        ``charges`` maps the units that the target charges for to fields of
        :class:`~scalable.scaling.metering.Charge`; None if the manager does not report them.
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
            "dismissed": cluster.departures.dismissed(known),
            "counts_costs": cluster.spending.counts,
        }

    def leave(self, manager: str, nonce: str, gone: bool = True) -> None:
        """Record that a manager is leaving (``gone=False``) or has left (``gone=True``)."""
        cluster = self._cluster
        if cluster.managers.leave(manager, nonce, gone=gone):
            logger.info("manager %r %s", manager, "has left" if gone else "is leaving")
            if gone:
                cluster.spending.left(manager)
        self._sharing.share(time.monotonic())
        cluster.on_change()
