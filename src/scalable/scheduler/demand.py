"""Desired number of workers of each tag, and its division among the managers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.pricing.budget import Ceiling
from scalable.protocol.pools import check_count, check_tag, shown
from scalable.scaling.decisions import ScaleDecision
from scalable.scaling.waterfall import Tier, Waterfall, unplaced

logger = logging.getLogger("scalable.scheduler")

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
        """Set the largest counts that the budget allows. The next :meth:`share` applies them.
        ``held`` is the reason (None without a limit), and ``way_out`` the hint for the user.
        """
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
