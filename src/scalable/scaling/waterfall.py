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
    #: Since when one worker is asked for as a trial, and how many were wanted in all then.
    probe: tuple[float, int] | None = None
    backoff_s: float = 0.0

    def open(self, now: float, spill_after_s: float) -> None:
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or spill_after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probe = None

    def close(self) -> None:
        self.passed_over, self.short_since, self.probe = False, None, None


class Waterfall:
    """Fills managers by priority and drains them in reverse.

    What a manager has, or was asked for and is about to deliver, stays with it while it is wanted:
    another one that attaches, whatever its priority, gets what is wanted beyond that.

    A tier that has not delivered what it was asked for within ``spill_after_s`` is passed over: it
    keeps what it has delivered, and the next tier is asked for the rest. After a back-off, where
    more is wanted than runs, it is asked for one worker beside what the next tiers get; once that
    is there, it is relied on again. The last tier that is relied on is never passed over for being
    slow: nobody else could do better.

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
        """A manager that left and comes back has nothing on its way."""
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
                    shares[tier.manager] += 1  # beside what the next ones are asked for
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
        """Whether a tier that is passed over is tried; a trial goes on while as much is wanted.

        Also where the next tiers have delivered meanwhile: a quick one would end each trial of a
        slow one.
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

    def _look(
        self, tag: str, count: int, present: Sequence[Tier], now: float
    ) -> dict[str, _Breaker]:
        """The breakers of the tiers that can be asked, after a look at each; none for one alone."""
        keys = {tier.manager: (tier.manager, tag) for tier in present}
        if len(present) < 2:
            for key in keys.values():
                self._breakers.pop(key, None)
            return {}
        breakers = {m: self._breakers.setdefault(key, _Breaker()) for m, key in keys.items()}
        healthy = [tier for tier in present if tag not in tier.failed]
        for tier in present:
            others = (breakers[t.manager] for t in healthy if t is not tier)
            spills = any(not other.passed_over for other in others)
            self._judge(tag, count, tier, breakers[tier.manager], now, spills=spills)
        if healthy and all(breakers[tier.manager].passed_over for tier in healthy):
            breakers[healthy[0].manager].close()
        return breakers

    def _judge(
        self, tag: str, count: int, tier: Tier, breaker: _Breaker, now: float, *, spills: bool
    ) -> None:
        """Take note of what a tier has delivered, and of whether it can be relied on.

        ``spills`` says whether there is another one that is relied on.
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
    """Tag -> wanted workers that no manager is asked for, because of limits; empty where none."""
    asked = {tag: sum(share.get(tag, 0) for share in shares.values()) for tag in wanted}
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}
