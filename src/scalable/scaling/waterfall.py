"""Shares wanted counts among worker managers: the first tier is filled first, and so on down.

Pure: it is told what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: A tier that failed again and again is tried again after at most so long, in seconds.
LONGEST_BACKOFF_S = 3600.0


@dataclass(frozen=True)
class Tier:
    """What a policy has to know of one manager.

    Attributes
    ----------
    manager
        Its id.
    priority
        Lower numbers are filled first; ties go by id.
    limits
        Tag -> most workers of it.
    tags
        What it can provision.
    running
        Tag -> workers that it has delivered.
    failed
        Tag -> why its pool was given up.
    present
        Whether it can be asked for anything; otherwise it keeps what runs.
    """

    manager: str
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    running: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    present: bool = True


class AllocationPolicy(Protocol):
    """Decides how many workers each manager is asked for."""

    def allot(
        self, wanted: Mapping[str, int], tiers: Sequence[Tier], now: float
    ) -> dict[str, dict[str, int]]:
        """Manager -> tag -> count.

        Parameters
        ----------
        wanted
            Tag -> workers in all.
        tiers
            The managers.
        now
            Monotonic seconds.
        """


@dataclass
class _Breaker:
    """Whether one tier delivers workers of one tag."""

    passed_over: bool = False
    short_since: float | None = None
    best: int = 0
    retry_at: float = 0.0
    probed_at: float | None = None
    backoff_s: float = 0.0

    def open(self, now: float, spill_after_s: float) -> None:
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or spill_after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probed_at = None


class Waterfall:
    """Fills managers by priority and drains them in reverse.

    What a manager has, or was asked for and is about to deliver, stays with it while it is wanted:
    another one that attaches, whatever its priority, gets what is wanted beyond that.

    A tier that has not delivered what it was asked for within ``spill_after_s`` is passed over: it
    keeps what it has delivered, and the next tier is asked for the rest. After a back-off, where
    more is wanted, it is asked for one worker beside what the next tiers get; once that is there,
    it is relied on again.

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
        """Manager -> tag -> count; see :class:`AllocationPolicy`."""
        shares: dict[str, dict[str, int]] = {tier.manager: {} for tier in tiers}
        for tag, count in wanted.items():
            able = sorted(
                (tier for tier in tiers if tag in tier.tags),
                key=lambda tier: (tier.priority, tier.manager),
            )
            for manager, share in self._share(tag, count, able, now).items():
                shares[manager][tag] = share
        return shares

    def _share(self, tag: str, count: int, able: Sequence[Tier], now: float) -> dict[str, int]:
        breakers = {}
        for tier in able:
            if tier.present and len(able) > 1:
                breakers[tier.manager] = self._judge(tag, count, tier, now)
        shares = self._kept(tag, count, able, breakers)
        left = count - sum(shares.values())
        for tier in able:
            room = min(left, tier.limits.get(tag, count) - shares[tier.manager])
            if not tier.present or room <= 0:
                continue
            breaker = breakers.get(tier.manager)
            if breaker is None or not breaker.passed_over:
                shares[tier.manager] += room
                left -= room
            elif now >= breaker.retry_at:
                shares[tier.manager] += 1  # beside what the next ones are asked for
                breaker.probed_at = now if breaker.probed_at is None else breaker.probed_at
        for tier in able:
            self._ask(tag, tier, shares[tier.manager], breakers.get(tier.manager), now)
        return shares

    def _kept(
        self, tag: str, count: int, able: Sequence[Tier], breakers: Mapping[str, _Breaker]
    ) -> dict[str, int]:
        """What each tier keeps of what it has, or is about to deliver; the last give back first."""
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

    def _judge(self, tag: str, count: int, tier: Tier, now: float) -> _Breaker:
        """Take note of what a tier has delivered, and of whether it can be relied on."""
        breaker = self._breakers.setdefault((tier.manager, tag), _Breaker())
        running, asked = tier.running.get(tag, 0), self._asked.get((tier.manager, tag), 0)
        delivered, breaker.best = running > breaker.best, running
        if breaker.passed_over:
            if delivered and running >= asked:
                breaker.passed_over, breaker.probed_at = False, None
            elif breaker.probed_at is not None and now - breaker.probed_at >= self.spill_after_s:
                breaker.open(now, self.spill_after_s)  # the probe was not delivered either
        elif tag in tier.failed and running < min(count, tier.limits.get(tag, count)):
            breaker.open(now, self.spill_after_s)
        elif running >= asked:
            breaker.short_since, breaker.backoff_s = None, 0.0
        elif delivered:
            breaker.short_since = now
        elif breaker.short_since is not None and now - breaker.short_since >= self.spill_after_s:
            breaker.open(now, self.spill_after_s)
        return breaker


def unplaced(wanted: Mapping[str, int], shares: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Tag -> wanted workers that no manager is asked for, because of limits; empty where none."""
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}
