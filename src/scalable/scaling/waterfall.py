"""Division of desired workers among managers in order. This module does no I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

logger = logging.getLogger("scalable.scaling")

#: Maximum seconds until a manager that failed repeatedly gets another trial.
LONGEST_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class Tier:
    """State of one worker manager, a tier of the waterfall."""

    manager: str
    #: Lower numbers get workers first. Equal numbers are ordered by id.
    priority: int = 0
    #: Maximum number of workers of each tag.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: Tags of the workers that the manager can start.
    tags: frozenset[str] = frozenset()
    #: Number of running workers of each tag.
    running: Mapping[str, int] = field(default_factory=dict)
    #: Reason for each pool that the manager has given up.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: True if the manager accepts requests. Otherwise it only keeps its running workers.
    present: bool = True
    #: Hourly price of one worker of each tag. Workers without a price count as free.
    prices: Mapping[str, float] = field(default_factory=dict)


def in_order(tag: str, tiers: Iterable[Tier], *, by_price: bool) -> list[Tier]:
    """Return a tag's managers ordered by priority, or by worker price if ``by_price``."""
    able = (tier for tier in tiers if tag in tier.tags)
    return sorted(
        able,
        key=lambda t: (t.prices.get(tag, 0.0) if by_price else 0.0, t.priority, t.manager),
    )


def unplaced(wanted: Mapping[str, int], shares: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Map tags to the number of desired workers that are not requested from any manager."""
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}


@dataclass
class _Delivery:
    """Record of how well one tier delivers the requested workers of one tag."""

    #: True if the tier gets no more workers than it runs, except for trials.
    passed_over: bool = False
    #: Time since which the tier has delivered no missing worker, or None if none is missing.
    short_since: float | None = None
    #: Number of running workers at the last evaluation.
    best: int = 0
    #: Time from which the next trial may start.
    retry_at: float = 0.0
    #: Time of a trial request for one worker, and total of desired workers at that time.
    probe: tuple[float, int] | None = None
    #: Seconds from passing the tier over until the next trial.
    backoff_s: float = 0.0

    def pass_over(self, now: float, after_s: float) -> None:
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probe = None

    def use(self) -> None:
        self.passed_over, self.short_since, self.probe = False, None, None

    def probes(self, count: int, missing: int, now: float) -> bool:
        """Return whether a skipped tier has a trial, and start one when it is due."""
        # A trial stops if fewer workers are desired. It continues if the next tiers have delivered
        # all workers, because a quick tier would otherwise stop each trial of a slow tier.
        if self.probe is not None and count >= self.probe[1]:
            return True
        if missing <= 0 or now < self.retry_at:
            return False
        self.probe = now, count
        return True


class Waterfall:
    """Policy that requests workers from managers in order, and releases them in reverse.
    A manager keeps its running and requested workers while they are desired. One that attaches
    later gets only additional workers. A tier that delivers none of the missing workers within
    ``spill_after_s`` is skipped, and the next tier gets the requests. Later, one worker is
    requested from it as a trial, and it is used again once this worker has connected. The last
    usable tier is never skipped for being slow.
    """

    def __init__(self, spill_after_s: float = 300.0, *, by_price: bool = False) -> None:
        self.spill_after_s = spill_after_s
        self.by_price = by_price
        self._asked: dict[tuple[str, str], int] = {}
        self._deliveries: dict[tuple[str, str], _Delivery] = {}

    def allot(
        self, wanted: Mapping[str, int], tiers: Sequence[Tier], now: float
    ) -> dict[str, dict[str, int]]:
        """Return the number of workers to request from each manager, by tag."""
        self._forget({(tier.manager, tag) for tier in tiers for tag in tier.tags})
        shares: dict[str, dict[str, int]] = {tier.manager: {} for tier in tiers}
        for tag, count in wanted.items():
            able = in_order(tag, tiers, by_price=self.by_price)
            for manager, share in self._share(tag, count, able, now).items():
                shares[manager][tag] = share
        return shares

    def _forget(self, known: set[tuple[str, str]]) -> None:
        """Remove the state of tiers that have left. A returning tier has no history."""
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
        """Return the workers that each manager keeps. The last tiers release theirs first."""
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
        """Map each present tier to its updated delivery record. A single tier has none."""
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
        """Record the delivered workers, and decide whether the tier is skipped."""
        # ``spills`` is True if another tier is usable.
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
