"""Interface of a policy for one pool; live pools and the simulator use the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalable.scaling.outlook import Outlook
from scalable.scaling.task_model import Kind, TaskModel


@dataclass(frozen=True)
class PoolView:
    """State of one pool at one moment: the input of a policy. All times are in seconds.

    Attributes
    ----------
    now
        Monotonic time.
    minimum, maximum
        Bounds of the worker count. If ``maximum`` is None there is no maximum.
    slots
        Number of slots of one worker; each slot runs one call at a time.
    wanted
        Number of workers that are wanted now.
    busy, idle
        Number of connected workers with calls, and without calls. Workers that are leaving do not
        count.
    arriving
        For each starting worker the time since it was requested.
    queued
        Kind of call -> number of ready calls that do not run yet.
    running
        Kind of call -> time that each running call has run.
    coming
        Calls that wait for other calls, as tuples (expected time until these calls are ready,
        kind, number of calls), the soonest first; in the likeliest outlook.
    outlooks
        Possible lengths of all calls, each with its coming calls; their weights sum to 1. If it is
        empty, a policy that needs outlooks makes them from ``coming`` and the task model.
    submitted
        Number of all calls that the pool has received, including ended calls.
    graph
        Whether the known calls count as all calls that will ever come (a graph). If False, they
        are a stream: more calls may arrive at any time.
    startup_s
        Expected time from the request of a worker until it connects.
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
    outlooks: Sequence[Outlook] = ()
    submitted: int = 0
    graph: bool = False
    startup_s: float = 1.0
    billed_startup_s: float = 0.0
    billed_least_s: float = 0.0


@dataclass(frozen=True)
class PoolDecision:
    """Result of a policy: worker count, reason, and predicted seconds until the known calls end."""

    workers: int
    reason: str
    predicted_s: float | None = None


class PoolPolicy(Protocol):
    """Policy for the worker count of one pool; each pool has its own object with its own state."""

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """Return the total number of workers that the pool should have from now on.

        Busy workers are not removed: the count is at least ``view.busy``, unless ``view.maximum``
        is less.

        Parameters
        ----------
        view
            State of the pool.
        model
            Model of the running times of the pool's calls; it has already observed the ended calls.
        """
