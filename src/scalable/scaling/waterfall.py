"""Division of the wanted workers among worker managers, which are filled in an order. No I/O.

A worker manager is a process that starts and stops workers on one target, such as a Slurm cluster.
The caller passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

logger = logging.getLogger("scalable.scaling")

#: Maximum seconds until a manager that failed repeatedly is tried again.
LONGEST_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class Tier:
    """State of one manager.

    Attributes
    ----------
    manager
        Id of the manager.
    priority
        Rank of the manager. Managers with lower numbers get workers first. Managers with equal
        numbers are ordered by id.
    limits
        Tag -> maximum number of workers.
    tags
        Tags of the workers that the manager can start.
    running
        Tag -> number of running workers.
    failed
        Tag -> reason, for each pool that the manager has given up.
    present
        Whether the manager accepts requests. If False, it gets no new workers and keeps its running
        workers.
    prices
        Tag -> price of one worker for one hour. Workers without a price count as free.
    """

    manager: str
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    running: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    present: bool = True
    prices: Mapping[str, float] = field(default_factory=dict)


def in_order(tag: str, tiers: Iterable[Tier], *, by_price: bool) -> list[Tier]:
    """Return the managers that can start workers of a tag, in the order in which they are filled.

    The order is that of the priorities; with ``by_price`` it is that of the prices of a worker, and
    of the priorities among equal prices.
    """
    able = (tier for tier in tiers if tag in tier.tags)
    return sorted(
        able,
        key=lambda t: (t.prices.get(tag, 0.0) if by_price else 0.0, t.priority, t.manager),
    )


def unplaced(wanted: Mapping[str, int], shares: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return tag -> number of wanted workers that no manager can be asked for, if it is not zero.

    Parameters
    ----------
    wanted
        Tag -> total number of wanted workers.
    shares
        Manager -> tag -> number of workers that are requested from it.
    """
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}


@dataclass
class _Delivery:
    """Record of whether one tier delivers the requested workers of one tag.

    Attributes
    ----------
    passed_over
        Whether the tier gets no more workers than it runs, except for trials.
    short_since
        Time since which the tier has delivered none of the missing workers; None if no worker is
        missing.
    best
        Number of running workers at the last look.
    retry_at
        Time from which on the next trial may start.
    probe
        Time of a trial request for one worker, and total number of wanted workers at that time.
    backoff_s
        Seconds from the time when the tier was passed over until the next trial.
    """

    passed_over: bool = False
    short_since: float | None = None
    best: int = 0
    retry_at: float = 0.0
    probe: tuple[float, int] | None = None
    backoff_s: float = 0.0

    def pass_over(self, now: float, after_s: float) -> None:
        """Pass the tier over until the back-off ends, at first for ``after_s`` seconds."""
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probe = None

    def use(self) -> None:
        """Use the tier again."""
        self.passed_over, self.short_since, self.probe = False, None, None

    def probes(self, count: int, missing: int, now: float) -> bool:
        """Return whether a passed-over tier is on trial, and start a trial when it is time.

        A trial ends if fewer workers are wanted. It does not end if the next tiers have delivered
        all workers meanwhile, because a quick tier would then end each trial of a slow tier.

        Parameters
        ----------
        count, missing
            Total number of wanted workers, and number of those that do not run.
        now
            Time in monotonic seconds.
        """
        if self.probe is not None and count >= self.probe[1]:
            return True
        if missing <= 0 or now < self.retry_at:
            return False
        self.probe = now, count
        return True


class Waterfall:
    """Policy that requests workers from managers in an order, and releases them in reverse order.

    A manager keeps its running and requested workers as long as they are wanted. A manager that
    attaches later gets only additional workers, even if it comes first in the order.

    If a tier does not deliver the requested workers within ``spill_after_s``, it is passed over: it
    keeps its running workers, and the missing workers are requested from the next tier. After some
    time, if more workers are wanted than run, one worker is requested from the passed-over tier as
    a trial. The requests to the next tiers do not change. When the trial worker has connected, the
    tier is used again. The last usable tier is never passed over for being slow, because no other
    tier could replace it.

    Parameters
    ----------
    spill_after_s
        Seconds without any progress after which a tier is passed over.
    by_price
        Whether the order is that of the prices, instead of that of the priorities.
    """

    def __init__(self, spill_after_s: float = 300.0, *, by_price: bool = False) -> None:
        self.spill_after_s = spill_after_s
        self.by_price = by_price
        self._asked: dict[tuple[str, str], int] = {}
        self._deliveries: dict[tuple[str, str], _Delivery] = {}

    def allot(
        self, wanted: Mapping[str, int], tiers: Sequence[Tier], now: float
    ) -> dict[str, dict[str, int]]:
        """Return manager -> tag -> number of workers to request from the manager.

        Parameters
        ----------
        wanted
            Tag -> total number of wanted workers.
        tiers
            States of the managers.
        now
            Current time in monotonic seconds.
        """
        self._forget({(tier.manager, tag) for tier in tiers for tag in tier.tags})
        shares: dict[str, dict[str, int]] = {tier.manager: {} for tier in tiers}
        for tag, count in wanted.items():
            able = in_order(tag, tiers, by_price=self.by_price)
            for manager, share in self._share(tag, count, able, now).items():
                shares[manager][tag] = share
        return shares

    def _forget(self, known: set[tuple[str, str]]) -> None:
        """Remove the state of tiers that have left; a tier that returns starts anew."""
        for key in self._asked.keys() - known:
            del self._asked[key]
            self._deliveries.pop(key, None)

    def _share(self, tag: str, count: int, able: Sequence[Tier], now: float) -> dict[str, int]:
        present = [tier for tier in able if tier.present]
        deliveries = self._look(tag, count, present, now)
        shares = self._kept(tag, count, able, deliveries)
        left = count - sum(shares.values())
        missing = count - sum(tier.running.get(tag, 0) for tier in able)
        for tier in present:
            room = min(count, tier.limits.get(tag, count)) - shares[tier.manager]
            delivery = deliveries.get(tier.manager)
            if delivery is not None and delivery.passed_over:
                if room > 0 and delivery.probes(count, missing, now):
                    shares[tier.manager] += 1  # in addition to the requests to the next tiers
                else:
                    delivery.probe = None
            elif (more := min(left, room)) > 0:
                shares[tier.manager] += more
                left -= more
        for tier in able:
            share = shares[tier.manager]
            self._asked[tier.manager, tag] = share
            delivery = deliveries.get(tier.manager)
            if delivery is None or delivery.passed_over or delivery.short_since is not None:
                continue
            if share > tier.running.get(tag, 0):
                delivery.short_since = now
        return shares

    def _kept(
        self, tag: str, count: int, able: Sequence[Tier], deliveries: Mapping[str, _Delivery]
    ) -> dict[str, int]:
        """Return manager -> workers that it keeps; the last tiers release workers first."""
        kept: dict[str, int] = {}
        left = count
        for tier in able:
            has = tier.running.get(tag, 0)
            delivery = deliveries.get(tier.manager)
            if tier.present and not (delivery is not None and delivery.passed_over):
                has = max(has, self._asked.get((tier.manager, tag), 0))
            kept[tier.manager] = max(0, min(has, left, tier.limits.get(tag, left)))
            left -= kept[tier.manager]
        return kept

    def _look(
        self, tag: str, count: int, present: Sequence[Tier], now: float
    ) -> dict[str, _Delivery]:
        """Return manager -> updated delivery of each present tier; empty for a single tier."""
        keys = {tier.manager: (tier.manager, tag) for tier in present}
        if len(present) < 2:
            for key in keys.values():
                self._deliveries.pop(key, None)
            return {}
        found = {m: self._deliveries.setdefault(key, _Delivery()) for m, key in keys.items()}
        before = {manager: delivery.passed_over for manager, delivery in found.items()}
        healthy = [tier for tier in present if tag not in tier.failed]
        for tier in present:
            others = (found[t.manager] for t in healthy if t is not tier)
            spills = any(not other.passed_over for other in others)
            self._judge(tag, count, tier, found[tier.manager], now, spills=spills)
        if healthy and all(found[tier.manager].passed_over for tier in healthy):
            found[healthy[0].manager].use()
        for manager, delivery in found.items():
            if delivery.passed_over != before[manager]:
                state = "passed over" if delivery.passed_over else "used again"
                logger.debug("pool %r of %d workers: manager %r is %s", tag, count, manager, state)
        return found

    def _judge(
        self, tag: str, count: int, tier: Tier, delivery: _Delivery, now: float, *, spills: bool
    ) -> None:
        """Record the workers that a tier has delivered, and decide whether it is passed over.

        ``spills`` states whether another tier is usable.
        """
        running, asked = tier.running.get(tag, 0), self._asked.get((tier.manager, tag), 0)
        delivered, delivery.best = running > delivery.best, running
        since = delivery.short_since
        if delivery.passed_over:
            if delivered and running >= asked:
                delivery.use()
            elif delivery.probe is not None and now - delivery.probe[0] >= self.spill_after_s:
                delivery.pass_over(now, self.spill_after_s)  # the probe was not delivered either
        elif tag in tier.failed and running < min(count, tier.limits.get(tag, count)):
            delivery.pass_over(now, self.spill_after_s)
        elif running >= asked:
            delivery.short_since, delivery.backoff_s = None, 0.0
        elif delivered:
            delivery.short_since = now
        elif spills and since is not None and now - since >= self.spill_after_s:
            delivery.pass_over(now, self.spill_after_s)
