"""Shares wanted counts among worker managers: the first tier is filled first, and so on down.

Pure: it is told what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
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


class _Trust(Enum):
    FULL = "full"
    NONE = "none"
    RECOVERING = "recovering"


@dataclass
class _Breaker:
    """Whether one tier delivers workers of one tag."""

    trust: _Trust = _Trust.FULL
    short_since: float | None = None
    best: int = 0
    retry_at: float = 0.0
    backoff_s: float = 0.0

    def open(self, now: float, spill_after_s: float) -> None:
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or spill_after_s)
        self.trust, self.retry_at, self.short_since = _Trust.NONE, now + self.backoff_s, None


class Waterfall:
    """Fills managers by priority and drains them in reverse.

    A tier that does not deliver what it was asked for within ``spill_after_s`` is passed over: it
    keeps what it has delivered, and the next tier is asked for the rest. After a back-off it is
    asked for one more worker, whose place elsewhere is kept until it is there. Once it is, the tier
    is asked for its full share again, and the tiers below give back as it delivers.

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
        shares: dict[str, int] = {}
        left = count
        for tier in able:
            key = (tier.manager, tag)
            running = tier.running.get(tag, 0)
            most = max(0, min(left, tier.limits.get(tag, left)))
            asked, certain = most, most
            if not tier.present:
                # Nobody can be asked: what runs goes on, and counts.
                asked = certain = min(most, running)
            elif len(able) > 1:
                trust = self._judge(key, most, tier, now)
                if trust is _Trust.NONE:
                    probe = now >= self._breakers[key].retry_at
                    asked = min(most, running + 1) if probe else min(most, running)
                    certain = min(asked, running)
                elif trust is _Trust.RECOVERING:
                    certain = min(most, running)
            self._asked[key] = shares[tier.manager] = asked
            left -= certain
        return shares

    def _judge(self, key: tuple[str, str], most: int, tier: Tier, now: float) -> _Trust:
        """Take note of what a tier has delivered, and say how far it can be relied on."""
        tag = key[1]
        breaker = self._breakers.setdefault(key, _Breaker())
        running, asked = tier.running.get(tag, 0), self._asked.get(key, 0)
        delivered = running > breaker.best
        breaker.best = running
        if breaker.trust is _Trust.NONE:
            if delivered and running >= asked:
                breaker.trust = _Trust.RECOVERING
            elif now >= breaker.retry_at + self.spill_after_s:
                breaker.open(now, self.spill_after_s)  # the probe was not delivered either
            return breaker.trust
        if tag in tier.failed and running < most:
            breaker.open(now, self.spill_after_s)
        elif running >= most:
            breaker.trust, breaker.backoff_s, breaker.short_since = _Trust.FULL, 0.0, None
        elif delivered or breaker.short_since is None or running >= asked:
            breaker.short_since = now  # it has just been asked for more, or is getting there
        elif now - breaker.short_since >= self.spill_after_s:
            breaker.open(now, self.spill_after_s)
        return breaker.trust


def unplaced(wanted: Mapping[str, int], shares: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Tag -> wanted workers that no manager is asked for, because of limits; empty where none."""
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}
