"""Input and result of a policy for one pool, the same for live pools and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalable.scaling.task_model import Kind, TaskModel


@dataclass(frozen=True)
class PoolView:
    """State of one pool at one moment. Lengths of time are in seconds.

    Attributes
    ----------
    now
        Monotonic time.
    minimum, maximum
        Bounds of the worker count; ``maximum`` None means no maximum.
    slots
        Number of calls that one worker runs at once.
    wanted
        Number of workers that are wanted now.
    busy, idle
        Numbers of connected workers that are not leaving: with and without calls.
    arriving
        Time since each worker that has not connected yet was requested.
    queued
        Kind -> number of ready calls that do not run yet.
    running
        Kind -> time that each running call has run.
    coming
        Calls that wait for others, as (expected time until they are ready, kind, number), the
        soonest first.
    submitted
        Number of all calls that the pool has received, ended ones included.
    graph
        Whether the known calls are taken to be all calls. Otherwise they are an open stream: more
        calls may arrive at any time.
    startup_s
        Learned time from the request of a worker until it connects.
    billed_startup_s
        Part of the start-up time that is billed.
    billed_least_s
        Minimum time for which a worker is billed.
    """

    now: float
    minimum: int = 0
    maximum: int | None = None
    slots: int = 1
    wanted: int = 0
    busy: int = 0
    idle: int = 0
    arriving: Sequence[float] = ()
    queued: Mapping[Kind, int] = field(default_factory=dict)
    running: Mapping[Kind, Sequence[float]] = field(default_factory=dict)
    coming: Sequence[tuple[float, Kind, int]] = ()
    submitted: int = 0
    graph: bool = False
    startup_s: float = 1.0
    billed_startup_s: float = 0.0
    billed_least_s: float = 0.0


@dataclass(frozen=True)
class PoolDecision:
    """Decided worker count of a pool, its reason, and the seconds until the known calls end."""

    workers: int
    reason: str
    predicted_s: float | None = None


class PoolPolicy(Protocol):
    """Policy for the worker count of one pool; one object for each pool, which may keep state."""

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """Return the total number of workers that the pool should have from now on.

        The count is at least ``view.busy``, unless ``view.maximum`` is less: busy workers are not
        removed.

        Parameters
        ----------
        view
            State of the pool.
        model
            Model of the running times of its calls; it has observed the ended ones.
        """
