"""Managers of one cluster and their reports, and the division of the desired workers among them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.pricing.budget import Ceiling
from scalable.protocol.pools import (
    AttachAnswer,
    Attachment,
    check_count,
    check_tag,
    difference,
    shown,
)
from scalable.scaling.decisions import ScaleDecision
from scalable.scaling.waterfall import Tier, Waterfall, unplaced

logger = logging.getLogger("scalable.scheduler")

#: Seconds without a heartbeat after which a manager counts as lost, and another process may attach
#: under its id.
LEASE_S = 30.0
#: Seconds after which a worker unknown to its manager has to retire. Within this time a manager may
#: still adopt the worker.
UNKNOWN_GRACE_S = 10.0


@dataclass
class AttachedManager:
    """State of one manager from the scheduler's point of view."""

    attachment: Attachment
    #: Monotonic time of the last attachment or heartbeat.
    last_seen: float
    #: Worker counts by tag, from the last heartbeat.
    report: Mapping[str, PoolStatus] = field(default_factory=dict)
    #: Names of the workers that the manager has reported.
    workers: frozenset[str] = frozenset()
    #: True once the manager takes no more orders and is stopping its workers.
    leaving: bool = False

    def state(self, now: float) -> str:
        if now - self.last_seen > LEASE_S:
            return "lost"
        return "leaving" if self.leaving else "attached"


class AttachedManagers:
    """Managers of one cluster. The class does no I/O, and receives the monotonic time."""

    def __init__(self) -> None:
        self._managers: dict[str, AttachedManager] = {}
        self._unknown_since: dict[str, float] = {}

    def __iter__(self) -> Iterator[AttachedManager]:
        return iter(list(self._managers.values()))

    def __len__(self) -> int:
        return len(self._managers)

    def attach(
        self, attachment: Attachment, now: float, instead_of: str | None = None
    ) -> AttachAnswer:
        """Attach a manager, or refuse one with a used id, or with workers unlike another's."""
        before = self._managers.get(attachment.manager)
        if before is not None and before.attachment.nonce not in (instead_of, attachment.nonce):
            silent_s = now - before.last_seen
            if silent_s <= LEASE_S:
                holder = {
                    "nonce": before.attachment.nonce,
                    "identity": dict(before.attachment.identity),
                    "silent_s": silent_s,
                }
                taken = f"another process is attached as manager {attachment.manager!r}"
                return {"accepted": False, "reason": taken, "holder": holder}
        if (reason := self._other_shape(attachment)) is not None:
            return {"accepted": False, "reason": reason, "holder": None}
        report = {} if before is None else before.report
        workers = frozenset[str]() if before is None else before.workers
        self._managers[attachment.manager] = AttachedManager(attachment, now, report, workers)
        return {"accepted": True, "reason": None, "holder": None}

    def _other_shape(self, attachment: Attachment) -> str | None:
        """Return how the offered workers differ from another manager's of the same tag, or None."""
        for manager in self._managers.values():
            other = manager.attachment
            if other.manager == attachment.manager:
                continue
            for tag in attachment.pools.keys() & other.pools.keys():
                words = difference(other.pools[tag], attachment.pools[tag])
                if words is not None:
                    return (
                        f"component {tag!r} has other resources here than on manager "
                        f"{other.manager!r}: {words}"
                    )
        return None

    def change(self, manager: str, **fields: Any) -> None:
        """Change fields of an attached manager's description of itself."""
        known = self._managers[manager]
        known.attachment = replace(known.attachment, **fields)

    def beat(
        self,
        manager: str,
        nonce: str,
        report: Mapping[str, PoolStatus],
        workers: Iterable[str],
        now: float,
    ) -> bool:
        """Store a heartbeat. Return False if no manager with this id and nonce is attached."""
        known = self._managers.get(manager)
        if known is None or known.attachment.nonce != nonce:
            return False
        known.report, known.workers, known.last_seen = report, frozenset(workers), now
        return True

    def leave(self, manager: str, nonce: str, *, gone: bool) -> bool:
        """Record that a manager is leaving or ``gone``. Return False if it was not attached."""
        known = self._managers.get(manager)
        if known is None or known.attachment.nonce != nonce:
            return False
        if gone:
            del self._managers[manager]
        else:
            known.leaving = True
        return True

    def pools(self) -> dict[str, PoolStatus]:
        """Map tags to the status of each pool, summed over the managers."""
        merged: dict[str, PoolStatus] = {}
        for manager in self._managers.values():
            offered = {
                tag: PoolStatus(slots=shape.get("slots", 1))
                for tag, shape in manager.attachment.pools.items()
            }
            for tag, pool in {**offered, **manager.report}.items():
                merged[tag] = merged[tag] + pool if tag in merged else pool
        return merged

    def tiers(self, running: Mapping[str, Mapping[str, int]], now: float) -> list[Tier]:
        return [
            Tier(
                manager=name,
                priority=manager.attachment.priority,
                limits=manager.attachment.limits,
                tags=frozenset(manager.attachment.pools),
                running=running.get(name, {}),
                failed={t: r.reason for t, r in manager.report.items() if r.reason},
                present=manager.state(now) == "attached",
                prices={t: p["per_hour"] for t, p in manager.attachment.prices.items()},
            )
            for name, manager in self._managers.items()
        ]

    def strangers(self, claims: Mapping[str, str], now: float) -> list[str]:
        """Return workers that their manager has not reported for over ``UNKNOWN_GRACE_S``.
        ``claims`` maps workers to the ids of their managers. Workers of a lost manager are left
        out, because its next process may adopt them.
        """
        unknown = set()
        for worker, name in claims.items():
            manager = self._managers.get(name)
            if manager is None or (manager.state(now) != "lost" and worker not in manager.workers):
                unknown.add(worker)
        self._unknown_since = {w: self._unknown_since.get(w, now) for w in unknown}
        return [w for w, since in self._unknown_since.items() if now - since > UNKNOWN_GRACE_S]

    def silent(self, grace_s: float, now: float) -> set[str]:
        """Return the ids of managers without a heartbeat for more than ``grace_s`` seconds."""
        return {n for n, m in self._managers.items() if now - m.last_seen > grace_s}


# Desired counts -----------------------------------------------------------------------------------

#: Called with (tag, before, after, reason, source) when a desired count changes.
ScalingListener = Callable[[str, int, int, str, str], object]
#: Maps tags to (serial number, worker count). A higher serial number replaces an earlier order.
Orders = dict[str, tuple[int, int]]


class Demand:
    """Desired worker counts of one cluster, and the orders for its managers.
    An order is the number of workers of a tag that one manager must provide. Thread-safe.
    """

    def __init__(self, policy: Waterfall | None = None) -> None:
        self.policy = policy or Waterfall()
        self.totals: dict[str, int] = {}
        self.listeners: list[ScalingListener] = []
        #: Maps tags to the number of desired workers that no manager can provide.
        self.unplaced: dict[str, int] = {}
        self.changed_at = time.monotonic()
        #: Largest counts that the budget allows, the reason, and a hint for the user.
        self.ceiling = Ceiling()
        self.held: str | None = None
        self.way_out = ""
        self._orders: dict[str, Orders] = {}
        self._serial = 0
        self._lock = threading.RLock()

    def want(self, tag: str, count: int, *, before: int, reason: str, source: str) -> None:
        """Set a tag's desired count, and issue orders for it even if the count is unchanged."""
        check_count(tag, count)
        with self._lock:
            self.totals[tag] = count
            self.ceiling = self.ceiling.shrunk(self.totals)
            self.changed_at = time.monotonic()
            for orders in self._orders.values():
                orders.pop(tag, None)
        if before != count:
            for listener in list(self.listeners):
                listener(tag, before, count, reason, source)

    def scale(
        self,
        counts: Mapping[str, int],
        pools: Mapping[str, PoolStatus],
        *,
        source: str,
        reason: str,
    ) -> dict[str, int]:
        """Set the desired counts of some tags, and return the previous counts.
        Raises ClusterError, changing nothing, for unknown pools, invalid counts or lack of budget.
        """
        for tag, count in counts.items():
            check_tag(tag, pools, self.totals)
            check_count(tag, count)
            if source in ("manual", "plan"):
                self._refuse_growth(tag, count)
        if source == "decision":  # like those of adaptive pools, decisions are lowered
            counts = self.ceiling.limited(counts)
        present = {tag: pools[tag].wanted if tag in pools else 0 for tag in counts}
        before = {tag: self.totals.get(tag, present[tag]) for tag in counts}
        for tag, count in counts.items():
            logger.debug("pool %r: %d workers are desired (%s: %s)", tag, count, source, reason)
            self.want(tag, count, before=before[tag], reason=reason, source=source)
        return before

    def limit(self, ceiling: Ceiling, held: str | None, way_out: str) -> None:
        """Set the largest counts that the budget allows, the reason, and a hint for the user."""
        with self._lock:
            self.ceiling, self.held, self.way_out = ceiling, held, way_out

    def _refuse_growth(self, tag: str, count: int) -> None:
        most = self.ceiling.allows(tag, count)
        if count > most:
            raise ClusterError(
                f"{shown(tag)} cannot have {count} workers: {self.held} (at most {most} here)",
                hint=self.way_out,
            )

    def decided(self, decision: ScaleDecision, pools: Mapping[str, PoolStatus]) -> dict[str, int]:
        """Return the desired counts after a decision, by tag. May raise ClusterError."""
        for tag, change in decision.changes.items():
            check_tag(tag, pools, self.totals)
            check_count(tag, abs(change) if isinstance(change, int) else change)
        wanted = {tag: pool.wanted for tag, pool in pools.items()} | self.totals
        return decision.counts(wanted)

    def share(self, tiers: Iterable[Tier]) -> None:
        """Divide the desired counts among the managers, and issue new orders for changed counts."""
        with self._lock:
            able = list(tiers)
            wanted = self.ceiling.limited(self.totals)
            shares = self.policy.allot(wanted, able, time.monotonic())
            left = unplaced(wanted, shares) if able else {}
            if left != self.unplaced:
                logger.debug("workers that no manager can provide: %s", left)
            self.unplaced = left
            for manager, counts in shares.items():
                orders = self._orders.setdefault(manager, {})
                for tag, count in counts.items():
                    if tag not in orders or orders[tag][1] != count:
                        self._serial += 1
                        orders[tag] = (self._serial, count)
                        logger.debug(
                            "manager %r gets order %d: %d workers of pool %r",
                            manager,
                            self._serial,
                            count,
                            tag,
                        )

    def orders(self, manager: str) -> Orders:
        with self._lock:
            return dict(self._orders.get(manager, {}))

    def settle(self, manager: str, tag: str, removed: int) -> None:
        """Reduce a tag's desired count by the number of workers that a manager gave up."""
        with self._lock:
            logger.debug("manager %r gives up %d workers of pool %r", manager, removed, tag)
            if tag in self.totals:
                self.totals[tag] = max(0, self.totals[tag] - removed)
            if tag in (orders := self._orders.get(manager, {})):
                serial, count = orders[tag]
                orders[tag] = (serial, max(0, count - removed))
