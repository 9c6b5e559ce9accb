"""Pools of a worker manager, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalable.manager.decisions import backoff_s
from scalable.manager.launcher import Launcher, UnitName
from scalable.manager.units import Phase, Unit
from scalable.spec.clusters import PoolStatus


@dataclass
class Pool:
    """The workers of one tag.

    Attributes
    ----------
    tag
        Name of the component, :data:`UNTAGGED` for workers without one.
    launcher
        Launcher of the units.
    template
        Entry of the worker specification that new units get, or None.
    slots
        Number of calls that one worker runs at once.
    failures
        Number of consecutive starts whose unit never connected.
    retry_at
        Monotonic seconds before which nothing is started.
    degraded
        Reason why the pool was given up, or None. Scaling the pool tries again.
    giving_up
        Whether the pool is in a crash loop whose reason is still being read.
    walltime_s, task_s
        Seconds that a unit may live, None for no limit; expected seconds of its longest call, 0
        if unknown.
    wait_s
        Seconds between request and connection of the unit that connected last.
    refused_since
        Monotonic seconds of the first consecutive transient refusal of its place, or None.
    refusal
        Message of the last transient refusal, or None.
    shape
        ``cpus``, ``memory`` and ``gpus`` of one worker, where they are known.
    """

    tag: str
    launcher: Launcher
    template: Mapping[str, Any] | None = None
    slots: int = 1
    failures: int = 0
    retry_at: float = 0.0
    degraded: str | None = None
    giving_up: bool = False
    walltime_s: float | None = None
    task_s: float = 0.0
    wait_s: float = 30.0
    refused_since: float | None = None
    refusal: str | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)

    def may_start(self, now: float) -> bool:
        """Return whether units may be started now."""
        return self.degraded is None and not self.giving_up and now >= self.retry_at

    def start_anew(self) -> None:
        """Reset failures and refusals, so that units are started again."""
        self.degraded, self.failures, self.retry_at = None, 0, 0.0
        self.giving_up = False
        self.accepted()

    def back_off(self, now: float) -> None:
        """Count a failed start, and delay the next one; delays grow."""
        self.failures += 1
        self.retry_at = now + backoff_s(self.failures)

    def refused_for(self, now: float, refusal: str) -> float:
        """Record a transient refusal; return the seconds since the first consecutive one."""
        self.refused_since = self.refused_since or now
        self.refusal = refusal
        return now - self.refused_since

    def accepted(self) -> None:
        """Record that its place accepted units."""
        self.refused_since = self.refusal = None


def status_of(pool: Pool, wanted: Sequence[UnitName], units: Iterable[Unit]) -> PoolStatus:
    """Count a pool's units.

    Parameters
    ----------
    pool
        Pool to count.
    wanted
        Names of the units that are wanted in it.
    units
        Units of all pools.
    """
    own = {unit.name: unit for unit in units if unit.pool == pool.tag}
    phases = Counter(unit.phase for unit in own.values())
    waiting = [unit.waiting for unit in own.values() if unit.waiting]
    return PoolStatus(
        wanted=len(wanted),
        running=phases[Phase.RUNNING],
        launching=phases[Phase.LAUNCHING],
        draining=phases[Phase.DRAINING],
        failed=sum(name not in own for name in wanted) if pool.degraded else 0,
        slots=pool.slots,
        reason=pool.degraded,
        waiting=waiting[-1] if waiting else pool.refusal,
    )
