"""Policy that requests workers from the managers that deliver them at the lowest cost. No I/O.

The decisions themselves are in :mod:`scalable.scaling.cheapest`. This module keeps what the policy
learns: the start-up times that each manager has delivered, and which managers do not deliver.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from scalable.scaling.breakers import Breaker, Breakers
from scalable.scaling.cheapest import HYSTERESIS, divide
from scalable.scaling.places import Place, Request
from scalable.scaling.tiers import Tier, UnitPrice, WaitingWork

logger = logging.getLogger("scalable.scaling")

#: Number of latest start-up times that are kept for each manager and tag.
KEPT_STARTS = 20
#: Time within which nearly all workers connect, as a multiple of the expected start-up time.
LATE = 1.3
#: Patience with a manager that delivers nothing, as a multiple of the expected start-up time.
PATIENCE = 2.0
#: Minimum duration of a trial, as a multiple of the last back-off.
LONGER_TRIALS = 2.0


class Deliveries:
    """Requests of one manager for one tag, and how long earlier ones took. Times are in seconds."""

    def __init__(self) -> None:
        self._asked_at: list[float] = []
        self._took_s: deque[float] = deque(maxlen=KEPT_STARTS)
        self._running = 0

    def see(self, running: int, now: float) -> None:
        """Record the number of connected workers; a new one counts as the earliest requested."""
        for _ in range(min(running - self._running, len(self._asked_at))):
            self._took_s.append(now - self._asked_at.pop(0))
        self._running = running

    def ask(self, share: int, now: float) -> None:
        """Record the number of requested workers, connected or not; the latest are cancelled."""
        waiting = max(0, share - self._running)
        del self._asked_at[waiting:]
        self._asked_at += [now] * (waiting - len(self._asked_at))

    def waits_s(self, now: float) -> tuple[float, ...]:
        """Return for how long each requested worker has not connected, the longest first."""
        return tuple(now - at for at in self._asked_at)

    def startup_s(self, prior_s: float) -> float:
        """Return the median of the latest start-up times; ``prior_s`` if there are none."""
        return median(self._took_s) if self._took_s else prior_s

    def late_s(self, prior_s: float) -> float:
        """Return the time within which nearly all workers connect."""
        return max([LATE * self.startup_s(prior_s), *self._took_s])


class Cheapest:
    """Policy that requests workers where they cost least until the known work has ended.

    Without a deadline, cost decides. With one, workers are requested from dearer managers as far as
    cheaper ones would not deliver in time. A manager that delivers nothing within its patience (the
    larger of ``spill_after_s`` and twice its start-up time) is passed over as by
    :class:`~scalable.scaling.waterfall.Waterfall`: it keeps its running workers, and one worker at
    a time is requested from it as a trial.

    Parameters
    ----------
    spill_after_s
        Minimum seconds without any progress after which a manager is passed over.
    deadline_at
        Monotonic time at which the known work should have ended; None for no deadline. When it has
        passed, cost decides.

    Attributes
    ----------
    reasons
        Manager -> tag -> reason for the last share, as a sentence.
    spared
        Tag -> number of wanted workers that are not requested, as fewer end the work in time.
    """

    weighs_work = True

    def __init__(self, spill_after_s: float = 300.0, deadline_at: float | None = None) -> None:
        self.spill_after_s = spill_after_s
        self.deadline_at = deadline_at
        self.reasons: Mapping[str, Mapping[str, str]] = {}
        self.spared: Mapping[str, int] = {}
        self._deliveries: dict[tuple[str, str], Deliveries] = {}
        self._asked: dict[tuple[str, str], int] = {}
        self._priors: dict[str, float] = {}
        self._breakers = Breakers(self._patience_s, longer_trials=LONGER_TRIALS)

    def allot(
        self,
        wanted: Mapping[str, int],
        tiers: Sequence[Tier],
        now: float,
        work: Mapping[str, WaitingWork] | None = None,
    ) -> dict[str, dict[str, int]]:
        """Return manager -> tag -> count; see :class:`scalable.scaling.tiers.AllocationPolicy`."""
        known = {(tier.manager, tag) for tier in tiers for tag in tier.tags}
        for key in self._deliveries.keys() - known:
            del self._deliveries[key]
            self._asked.pop(key, None)
            self._breakers.forget(*key)
        self._priors = {tier.manager: tier.starting.startup_s for tier in tiers}
        shares: dict[str, dict[str, int]] = {tier.manager: {} for tier in tiers}
        spared: dict[str, int] = {}
        reasons: dict[str, dict[str, str]] = {tier.manager: {} for tier in tiers}
        for tag, count in wanted.items():
            able = [tier for tier in tiers if tag in tier.tags]
            request, breakers = self._request(tag, count, able, now, (work or {}).get(tag))
            division = divide(request)
            spared[tag] = division.spared
            for place in request.places:
                name, share = place.manager, division.shares[place.manager]
                self._tell(tag, place, share, division.reasons[name])
                shares[name][tag], reasons[name][tag] = share, division.reasons[name]
                self._asked[name, tag] = share
                self._deliveries[name, tag].ask(share, now)
                if name in breakers:
                    breakers[name].asked(now, short=share > place.running)
        self.reasons, self.spared = reasons, spared
        return shares

    def _tell(self, tag: str, place: Place, share: int, reason: str) -> None:
        if share != self._asked.get((place.manager, tag)):
            logger.debug("pool %r: %d workers of %r: %s", tag, share, place.manager, reason)

    def _startup_s(self, manager: str, tag: str) -> float:
        return self._deliveries[manager, tag].startup_s(self._priors.get(manager, 0.0))

    def _patience_s(self, manager: str, tag: str) -> float:
        return max(self.spill_after_s, PATIENCE * self._startup_s(manager, tag))

    def _request(
        self, tag: str, count: int, able: Sequence[Tier], now: float, work: WaitingWork | None
    ) -> tuple[Request, dict[str, Breaker]]:
        for tier in able:
            deliveries = self._deliveries.setdefault((tier.manager, tag), Deliveries())
            deliveries.see(tier.running.get(tag, 0), now)
        left_s = None if self.deadline_at is None else self.deadline_at - now
        bare = tuple(self._place(tag, tier, now) for tier in able)
        late = left_s is not None and left_s <= 0
        request = Request(count, bare, work, None if late else left_s)
        order = sorted(able, key=lambda tier: _named(bare, tier.manager).cost(request.use_s))
        asked = {tier.manager: self._asked.get((tier.manager, tag), 0) for tier in able}
        present = [tier for tier in order if tier.present]
        breakers = self._breakers.look(tag, count, present, asked, now)
        missing = count - sum(place.running for place in bare)
        places = []
        for tier, place in zip(able, bare, strict=True):
            breaker = breakers.get(tier.manager)
            if not tier.present:
                places.append(_unusable(place, "it takes no requests"))
            elif breaker is not None and breaker.passed_over:
                saves = any(_dearer(other, place, request.use_s) for other in bare)
                wish = max(missing, int(saves and count > 0))
                trial = self._on_trial(tag, tier, breaker, count, wish, now)
                places.append(_unusable(place, _passed_over(tag, tier, breaker, now), trial=trial))
            else:
                places.append(place)
        least = None if work is None else work.least
        return Request(count, tuple(places), work, request.left_s, least), breakers

    def _on_trial(
        self, tag: str, tier: Tier, breaker: Breaker, count: int, missing: int, now: float
    ) -> bool:
        # The first trial continues a request that waits in a queue: it keeps its place there, and
        # shows how long the queue takes.
        first = breaker.backoff_s <= self._patience_s(tier.manager, tag)
        waits = self._deliveries[tier.manager, tag].waits_s(now)
        if first and waits and count > 0 and breaker.probe is None and tag not in tier.failed:
            breaker.probe = now, count
        on_trial = breaker.probes(count, missing, now)
        if not on_trial:
            breaker.probe = None
        return on_trial

    def _place(self, tag: str, tier: Tier, now: float) -> Place:
        deliveries = self._deliveries[tier.manager, tag]
        prior_s = tier.starting.startup_s
        startup_s = deliveries.startup_s(prior_s)
        return Place(
            manager=tier.manager,
            price=tier.prices.get(tag, UnitPrice()),
            priority=tier.priority,
            limit=tier.limits.get(tag),
            running=tier.running.get(tag, 0),
            pending=deliveries.waits_s(now),
            startup_s=startup_s,
            late_s=deliveries.late_s(prior_s),
            billed_startup_s=min(startup_s, tier.starting.billed_s),
        )


def _named(places: Sequence[Place], manager: str) -> Place:
    return next(place for place in places if place.manager == manager)


def _unusable(place: Place, why: str, *, trial: bool = False) -> Place:
    return replace(place, usable=False, why=why, trial=trial)


def _dearer(other: Place, place: Place, use_s: float) -> bool:
    """Return whether replacing a running worker of another place would save enough."""
    if not other.running or other.manager == place.manager:
        return False
    return (1 + HYSTERESIS) * place.cost(use_s) < other.cost(use_s, running=True)


def _passed_over(tag: str, tier: Tier, breaker: Breaker, now: float) -> str:
    failed = tier.failed.get(tag)
    why = f"it failed: {failed}" if failed else "it delivers nothing"
    again_s = breaker.retry_at - now
    again = f"; not tried again within {again_s:.0f} s" if again_s > 0 and not breaker.probe else ""
    return f"passed over, as {why}{again}"
