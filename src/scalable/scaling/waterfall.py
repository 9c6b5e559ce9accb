"""Division of the wanted workers among worker managers, by the priorities of the managers.

A worker manager is a process that starts and stops workers on one target, such as a Slurm cluster.
A tier is one manager with its priority. No I/O: the caller passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

logger = logging.getLogger("scalable.scaling")

#: Maximum seconds until a manager that failed repeatedly is tried again.
LONGEST_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class Tier:
    """State of one manager: the input of an allocation policy.

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
    """

    manager: str
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    running: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    present: bool = True


class AllocationPolicy(Protocol):
    """Policy for the number of workers that are requested from each manager."""

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


@dataclass
class _Breaker:
    """Circuit breaker: it notes whether one tier delivers the requested workers of one tag."""

    passed_over: bool = False
    short_since: float | None = None
    best: int = 0
    retry_at: float = 0.0
    #: Time of a trial request for one worker, and total number of wanted workers at that time.
    probe: tuple[float, int] | None = None
    backoff_s: float = 0.0

    def open(self, now: float, spill_after_s: float) -> None:
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or spill_after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probe = None

    def close(self) -> None:
        self.passed_over, self.short_since, self.probe = False, None, None


class Waterfall:
    """Policy that requests workers from managers by priority and releases them in reverse order.

    A manager keeps its running and requested workers as long as they are wanted. A manager that
    attaches later gets only additional workers, even if its priority is higher.

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
    """

    def __init__(self, spill_after_s: float = 300.0) -> None:
        self.spill_after_s = spill_after_s
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        self._asked: dict[tuple[str, str], int] = {}

    def allot(
        self, wanted: Mapping[str, int], tiers: Sequence[Tier], now: float
    ) -> dict[str, dict[str, int]]:
        """Return manager -> tag -> count; see :class:`AllocationPolicy`."""
        self._forget({(tier.manager, tag) for tier in tiers for tag in tier.tags})
        shares: dict[str, dict[str, int]] = {tier.manager: {} for tier in tiers}
        for tag, count in wanted.items():
            able = sorted(
                (tier for tier in tiers if tag in tier.tags),
                key=lambda tier: (tier.priority, tier.manager),
            )
            for manager, share in self._share(tag, count, able, now).items():
                shares[manager][tag] = share
        return shares

    def _forget(self, known: set[tuple[str, str]]) -> None:
        """Remove the state of tiers that have left; a tier that returns starts anew."""
        for key in self._asked.keys() - known:
            del self._asked[key]
            self._breakers.pop(key, None)

    def _share(self, tag: str, count: int, able: Sequence[Tier], now: float) -> dict[str, int]:
        breakers = self._look(tag, count, [tier for tier in able if tier.present], now)
        shares = self._kept(tag, count, able, breakers)
        left = count - sum(shares.values())
        missing = count - sum(tier.running.get(tag, 0) for tier in able)
        for tier in able:
            if not tier.present:
                continue
            room = min(count, tier.limits.get(tag, count)) - shares[tier.manager]
            breaker = breakers.get(tier.manager)
            if breaker is not None and breaker.passed_over:
                if room > 0 and self._probes(breaker, count, missing, now):
                    shares[tier.manager] += 1  # in addition to the requests to the next tiers
                else:
                    breaker.probe = None
            elif (more := min(left, room)) > 0:
                shares[tier.manager] += more
                left -= more
        for tier in able:
            self._ask(tag, tier, shares[tier.manager], breakers.get(tier.manager), now)
        return shares

    @staticmethod
    def _probes(breaker: _Breaker, count: int, missing: int, now: float) -> bool:
        """Return whether a passed-over tier is on trial, and start a trial when it is time.

        A trial ends if fewer workers are wanted. It does not end if the next tiers have delivered
        all workers meanwhile, because a quick tier would then end each trial of a slow tier.
        """
        if breaker.probe is not None and count >= breaker.probe[1]:
            return True
        if missing <= 0 or now < breaker.retry_at:
            return False
        breaker.probe = now, count
        return True

    def _kept(
        self, tag: str, count: int, able: Sequence[Tier], breakers: Mapping[str, _Breaker]
    ) -> dict[str, int]:
        """Return manager -> workers that it keeps; the last tiers release workers first."""
        kept: dict[str, int] = {}
        left = count
        for tier in able:
            has = tier.running.get(tag, 0)
            breaker = breakers.get(tier.manager)
            if tier.present and not (breaker is not None and breaker.passed_over):
                has = max(has, self._asked.get((tier.manager, tag), 0))
            kept[tier.manager] = max(0, min(has, left, tier.limits.get(tag, left)))
            left -= kept[tier.manager]
        return kept

    def _ask(self, tag: str, tier: Tier, share: int, breaker: _Breaker | None, now: float) -> None:
        self._asked[tier.manager, tag] = share
        if breaker is not None and not breaker.passed_over and share > tier.running.get(tag, 0):
            breaker.short_since = now if breaker.short_since is None else breaker.short_since

    def _look(
        self, tag: str, count: int, present: Sequence[Tier], now: float
    ) -> dict[str, _Breaker]:
        """Return manager -> updated breaker of each present tier; empty for a single tier."""
        keys = {tier.manager: (tier.manager, tag) for tier in present}
        if len(present) < 2:
            for key in keys.values():
                self._breakers.pop(key, None)
            return {}
        breakers = {m: self._breakers.setdefault(key, _Breaker()) for m, key in keys.items()}
        before = {manager: breaker.passed_over for manager, breaker in breakers.items()}
        healthy = [tier for tier in present if tag not in tier.failed]
        for tier in present:
            others = (breakers[t.manager] for t in healthy if t is not tier)
            spills = any(not other.passed_over for other in others)
            self._judge(tag, count, tier, breakers[tier.manager], now, spills=spills)
        if healthy and all(breakers[tier.manager].passed_over for tier in healthy):
            breakers[healthy[0].manager].close()
        for manager, breaker in breakers.items():
            if breaker.passed_over != before[manager]:
                state = "passed over" if breaker.passed_over else "used again"
                logger.debug("pool %r of %d workers: manager %r is %s", tag, count, manager, state)
        return breakers

    def _judge(
        self, tag: str, count: int, tier: Tier, breaker: _Breaker, now: float, *, spills: bool
    ) -> None:
        """Record the workers that a tier has delivered, and decide whether it is passed over.

        ``spills`` states whether another tier is usable.
        """
        running, asked = tier.running.get(tag, 0), self._asked.get((tier.manager, tag), 0)
        delivered, breaker.best = running > breaker.best, running
        if breaker.passed_over:
            if delivered and running >= asked:
                breaker.close()
            elif breaker.probe is not None and now - breaker.probe[0] >= self.spill_after_s:
                breaker.open(now, self.spill_after_s)  # the probe was not delivered either
        elif tag in tier.failed and running < min(count, tier.limits.get(tag, count)):
            breaker.open(now, self.spill_after_s)
        elif running >= asked:
            breaker.short_since, breaker.backoff_s = None, 0.0
        elif delivered:
            breaker.short_since = now
        elif (
            spills
            and breaker.short_since is not None
            and now - breaker.short_since >= self.spill_after_s
        ):
            breaker.open(now, self.spill_after_s)


def unplaced(wanted: Mapping[str, int], shares: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return tag -> number of wanted workers that no manager was asked for, if it is not zero."""
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}
