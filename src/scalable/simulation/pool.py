"""Pools and workers of a simulation: their state at one moment. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, runtime_checkable

from scalable.scaling.pool_policy import PoolPolicy
from scalable.scaling.task_model import Kind
from scalable.simulation.ready_calls import ReadyCalls, first_come
from scalable.simulation.workloads import Terms

#: Number of latest worker starts from which the expected start-up time is computed, as in a live
#: cluster.
KEPT_STARTS = 20


@runtime_checkable
class Observer(Protocol):
    """Policy that learns from ended calls itself instead of using the task model."""

    def ended(self, kind: Kind, duration_s: float) -> None:
        """Record a call that ended."""


@dataclass(eq=False)
class SimulatedWorker:
    """One worker: when it was requested, when it connects, and how many calls it runs."""

    asked_s: float
    arrives_s: float
    connected: bool = False
    gone: bool = False
    calls: int = 0


@dataclass
class SimulatedPool:
    """One pool: its policy, its calls, and its workers."""

    name: str
    terms: Terms
    policy: PoolPolicy
    expected_s: float
    queue: ReadyCalls = field(default_factory=first_come)
    queued: dict[Kind, int] = field(default_factory=dict)
    running: dict[Kind, dict[int, float]] = field(default_factory=dict)
    arriving: list[SimulatedWorker] = field(default_factory=list)
    #: Connected workers with a free slot (room for one call); the last worker is used first.
    free: list[SimulatedWorker] = field(default_factory=list)
    connected: int = 0
    busy: int = 0
    submitted: int = 0
    starts: list[float] = field(default_factory=list)
    cost: float = 0.0
    timeline: list[tuple[float, int]] = field(default_factory=list)
    #: Workers that were requested and have not ended, in the order of their requests.
    everyone: dict[SimulatedWorker, None] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """Number of connected and starting workers."""
        return self.connected + len(self.arriving)

    def startup_s(self, now: float) -> float:
        """Return the expected start-up time in seconds, learned as in a live cluster."""
        learned = median(self.starts[-KEPT_STARTS:]) if self.starts else self.expected_s
        return max(learned, now - self.arriving[0].asked_s if self.arriving else 0.0)
