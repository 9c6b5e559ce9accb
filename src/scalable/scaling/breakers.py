"""Circuit breakers: they note which managers deliver the requested workers. No I/O.

A worker manager is a process that starts and stops workers on one target, such as a Slurm cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalable.scaling.tiers import Tier

logger = logging.getLogger("scalable.scaling")

#: Maximum seconds until a manager that failed repeatedly is tried again.
LONGEST_BACKOFF_S = 3600.0


@dataclass
class Breaker:
    """Circuit breaker: it notes whether one tier delivers the requested workers of one tag.

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

    def open(self, now: float, after_s: float) -> None:
        """Pass the tier over until the back-off ends, at first for ``after_s`` seconds."""
        self.backoff_s = min(LONGEST_BACKOFF_S, (2 * self.backoff_s) or after_s)
        self.passed_over, self.retry_at = True, now + self.backoff_s
        self.short_since = self.probe = None

    def close(self) -> None:
        """Use the tier again."""
        self.passed_over, self.short_since, self.probe = False, None, None

    def asked(self, now: float, *, short: bool) -> None:
        """Record a request; ``short`` states whether it exceeds the running workers."""
        if not self.passed_over and short and self.short_since is None:
            self.short_since = now

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


class Breakers:
    """The circuit breakers of all tiers and tags.

    Parameters
    ----------
    patience_s
        Function that takes manager and tag, and returns the seconds without any progress after
        which the tier is passed over.
    longer_trials
        Minimum duration of a trial, as a multiple of the last back-off: how much longer each
        following trial waits. With 0, all trials wait for the patience.
    """

    def __init__(
        self, patience_s: Callable[[str, str], float], *, longer_trials: float = 0.0
    ) -> None:
        self._patience_s = patience_s
        self._longer_trials = longer_trials
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def forget(self, manager: str, tag: str) -> None:
        """Remove the state of a tier that has left; a tier that returns starts anew."""
        self._breakers.pop((manager, tag), None)

    def look(
        self,
        tag: str,
        count: int,
        present: Sequence[Tier],
        asked: Mapping[str, int],
        now: float,
    ) -> dict[str, Breaker]:
        """Return manager -> updated breaker of each present tier; empty for a single tier.

        The last usable tier is never passed over for being slow, because no other tier could
        replace it.

        Parameters
        ----------
        tag, count
            Tag, and total number of its wanted workers.
        present
            Tiers that accept requests, in the order in which they are filled.
        asked
            Manager -> number of workers that were requested at last.
        now
            Time in monotonic seconds.
        """
        keys = {tier.manager: (tier.manager, tag) for tier in present}
        if len(present) < 2:
            for key in keys.values():
                self._breakers.pop(key, None)
            return {}
        breakers = {m: self._breakers.setdefault(key, Breaker()) for m, key in keys.items()}
        before = {manager: breaker.passed_over for manager, breaker in breakers.items()}
        healthy = [tier for tier in present if tag not in tier.failed]
        for tier in present:
            others = (breakers[t.manager] for t in healthy if t is not tier)
            spills = any(not other.passed_over for other in others)
            share = asked.get(tier.manager, 0)
            self._judge(tag, count, tier, share, breakers[tier.manager], now, spills=spills)
        if healthy and all(breakers[tier.manager].passed_over for tier in healthy):
            breakers[healthy[0].manager].close()
        for manager, breaker in breakers.items():
            if breaker.passed_over != before[manager]:
                state = "passed over" if breaker.passed_over else "used again"
                logger.debug("pool %r of %d workers: manager %r is %s", tag, count, manager, state)
        return breakers

    def _judge(
        self,
        tag: str,
        count: int,
        tier: Tier,
        asked: int,
        breaker: Breaker,
        now: float,
        *,
        spills: bool,
    ) -> None:
        """Record the workers that a tier has delivered, and decide whether it is passed over.

        ``spills`` states whether another tier is usable.
        """
        running, patience_s = tier.running.get(tag, 0), self._patience_s(tier.manager, tag)
        delivered, breaker.best = running > breaker.best, running
        if breaker.passed_over:
            if delivered and running >= asked:
                breaker.close()
            elif breaker.probe is not None and now - breaker.probe[0] >= max(
                patience_s, self._longer_trials * breaker.backoff_s
            ):
                breaker.open(now, patience_s)  # the probe was not delivered either
        elif tag in tier.failed and running < min(count, tier.limits.get(tag, count)):
            breaker.open(now, patience_s)
        elif running >= asked:
            breaker.short_since, breaker.backoff_s = None, 0.0
        elif delivered:
            breaker.short_since = now
        elif spills and breaker.short_since is not None and now - breaker.short_since >= patience_s:
            breaker.open(now, patience_s)
