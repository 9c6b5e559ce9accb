"""Division of the wanted workers among worker managers, by the priorities of the managers. No I/O.

The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalable.scaling.breakers import Breaker, Breakers
from scalable.scaling.tiers import Tier, WaitingWork


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

    weighs_work = False

    def __init__(self, spill_after_s: float = 300.0) -> None:
        self.spill_after_s = spill_after_s
        self.reasons: Mapping[str, Mapping[str, str]] = {}
        self.spared: Mapping[str, int] = {}
        self._breakers = Breakers(lambda _manager, _tag: self.spill_after_s)
        self._asked: dict[tuple[str, str], int] = {}

    def allot(
        self,
        wanted: Mapping[str, int],
        tiers: Sequence[Tier],
        now: float,
        work: Mapping[str, WaitingWork] | None = None,  # noqa: ARG002
    ) -> dict[str, dict[str, int]]:
        """Return manager -> tag -> count; see :class:`scalable.scaling.tiers.AllocationPolicy`."""
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
            self._breakers.forget(*key)

    def _share(self, tag: str, count: int, able: Sequence[Tier], now: float) -> dict[str, int]:
        asked = {tier.manager: self._asked.get((tier.manager, tag), 0) for tier in able}
        present = [tier for tier in able if tier.present]
        breakers = self._breakers.look(tag, count, present, asked, now)
        shares = self._kept(tag, count, able, breakers)
        left = count - sum(shares.values())
        missing = count - sum(tier.running.get(tag, 0) for tier in able)
        for tier in present:
            room = min(count, tier.limits.get(tag, count)) - shares[tier.manager]
            breaker = breakers.get(tier.manager)
            if breaker is not None and breaker.passed_over:
                if room > 0 and breaker.probes(count, missing, now):
                    shares[tier.manager] += 1  # in addition to the requests to the next tiers
                else:
                    breaker.probe = None
            elif (more := min(left, room)) > 0:
                shares[tier.manager] += more
                left -= more
        for tier in able:
            share = shares[tier.manager]
            self._asked[tier.manager, tag] = share
            if (breaker := breakers.get(tier.manager)) is not None:
                breaker.asked(now, short=share > tier.running.get(tag, 0))
        return shares

    def _kept(
        self, tag: str, count: int, able: Sequence[Tier], breakers: Mapping[str, Breaker]
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
