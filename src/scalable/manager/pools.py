"""The pools of a worker manager, and the counts of their units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalable.manager.decisions import backoff_s
from scalable.manager.launcher import Launcher, UnitName
from scalable.manager.units import Phase, Unit
from scalable.spec.clusters import PoolStatus


@dataclass
class Pool:
    """One pool of a manager: the workers of one tag, and what is known about their starts.

    Attributes
    ----------
    tag
        Name of the component; :data:`UNTAGGED` for workers without a tag.
    launcher
        Launcher that starts and stops the pool's units.
    template
        Entry of the worker specification for new units; None if the pool cannot grow.
    slots
        Number of calls that one worker runs at once.
    failures
        Number of failed starts since a unit last connected.
    interruptions
        Number of times, since a unit last connected, that the next start was delayed by
        :meth:`pause`.
    retry_at
        Time before which no unit is started, in monotonic seconds.
    degraded
        Reason why the pool was given up, or None. The pool is tried again when it is scaled.
    giving_up
        Whether the pool is in a crash loop whose reason is still being read.
    walltime_s, task_s
        Seconds for which a unit may live (None for no limit), and expected seconds of the longest
        call (0 if unknown).
    wait_s
        Seconds from request to connection of the unit that connected last.
    refused_since
        Time since which the launcher has refused all requests with temporary errors, in monotonic
        seconds; None if the last request was accepted.
    refusal
        Message of the last temporary error, or None.
    room
        Maximum number of units in the next request; None for no maximum. It is found by halving
        requests that the place has no room for.
    new_entry
        Function that returns name and entry of a new unit, in place of the template and a name of
        ours; or None.
    start_failure
        Reason why a unit has failed to start, as long as none has connected since; or None.
    lost, last_loss
        Number of units that were lost, and name and reason of the last, or None.
    shape
        ``cpus``, ``memory`` and ``gpus`` of one worker, where they are known.
    """

    tag: str
    launcher: Launcher
    template: Mapping[str, Any] | None = None
    slots: int = 1
    failures: int = 0
    interruptions: int = 0
    retry_at: float = 0.0
    degraded: str | None = None
    giving_up: bool = False
    walltime_s: float | None = None
    task_s: float = 0.0
    wait_s: float = 30.0
    refused_since: float | None = None
    refusal: str | None = None
    room: int | None = None
    new_entry: Callable[[], Mapping[UnitName, Mapping[str, Any]]] | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    start_failure: str | None = None
    lost: int = 0
    last_loss: str | None = None

    def may_start(self, now: float) -> bool:
        """Return whether units of the pool may be started now."""
        return self.degraded is None and not self.giving_up and now >= self.retry_at

    def start_anew(self) -> None:
        """Forget failures and refusals, so that units are started again."""
        self.degraded, self.retry_at = None, 0.0
        self.giving_up = False
        self.failures = self.interruptions = 0
        self.accepted(0, whole=True)

    def connected(self) -> None:
        """Record that a unit has connected: starts succeed."""
        self.failures = self.interruptions = 0
        self.start_failure = None

    def back_off(self, now: float) -> None:
        """Count a failed start, and delay the next start; each failure makes the delay longer."""
        self.failures += 1
        self.retry_at = now + backoff_s(self.failures)

    def pause(self, now: float) -> None:
        """Delay the next start; repeated delays become longer.

        This is for units that were refused for now, or were ended from outside before they
        connected: no failure, so that it does not end the pool. Units that ended together count
        once.
        """
        if now >= self.retry_at:
            self.interruptions += 1
            self.retry_at = now + backoff_s(self.interruptions)

    def refused_for(self, now: float, refusal: str) -> float:
        """Record a temporary refusal; return for how many seconds requests have been refused."""
        self.refused_since = self.refused_since or now
        self.refusal = refusal
        return now - self.refused_since

    def limited(self, now: float, count: int, refusal: str) -> bool:
        """Record that the place had no room for a request of ``count`` units.

        The next request is for half of them, at once. A request for a single unit is repeated after
        a delay, any number of times.

        Returns
        -------
        bool
            Whether this is the first request since the last success that cannot be made smaller.
        """
        self.refused_since = None
        self.room = max(1, count // 2)
        if count > 1:
            return False
        first, self.refusal = self.refusal is None, refusal
        self.pause(now)
        return first

    def accepted(self, count: int, *, whole: bool) -> None:
        """Record that the launcher has accepted a request.

        Parameters
        ----------
        count
            Number of units in the request.
        whole
            Whether it had all units that were due, not only as many as :attr:`room` allows.
        """
        self.refused_since = None
        if whole:
            self.room = self.refusal = None
        else:
            self.room = 2 * count


def status_of(pool: Pool, wanted: Sequence[UnitName], units: Iterable[Unit]) -> PoolStatus:
    """Return the counts of a pool's units, and its reasons for waiting or being degraded.

    Parameters
    ----------
    pool
        Pool to count.
    wanted
        Names of the wanted units of the pool.
    units
        Existing units of all pools.
    """
    own = {unit.name: unit for unit in units if unit.pool == pool.tag}
    phases = Counter(unit.phase for unit in own.values())
    waiting = [unit.waiting for unit in own.values() if unit.waiting]
    suspended = sum(unit.suspended and unit.phase is Phase.RUNNING for unit in own.values())
    return PoolStatus(
        wanted=len(wanted),
        running=phases[Phase.RUNNING] - suspended,
        launching=phases[Phase.LAUNCHING],
        draining=phases[Phase.DRAINING],
        failed=sum(name not in own for name in wanted) if pool.degraded else 0,
        slots=pool.slots,
        reason=pool.degraded,
        waiting=waiting[-1] if waiting else pool.refusal or _failure(pool),
        lost=pool.lost,
        last_loss=pool.last_loss,
        suspended=suspended,
    )


def _failure(pool: Pool) -> str | None:
    return f"the last start failed: {pool.start_failure}" if pool.start_failure else None
