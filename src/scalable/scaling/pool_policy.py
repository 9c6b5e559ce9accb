"""Interface of a policy for one pool, used by real pools and the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalable.scaling.outlook import Outlook
from scalable.scaling.task_model import Kind, TaskModel


@dataclass(frozen=True)
class PoolView:
    """State of one pool at one moment: the input of a policy. All times are in seconds."""

    #: Monotonic time.
    now: float
    minimum: int = 0
    maximum: int | None = None
    #: Slots of one worker.
    slots: int = 1
    wanted: int = 0
    #: Number of connected workers with tasks, and without tasks. Leaving workers do not count.
    busy: int = 0
    idle: int = 0
    #: For each starting worker, the time since it was requested.
    arriving: Sequence[float] = ()
    #: Number of tasks of each kind that are ready and do not run yet.
    queued: Mapping[Kind, int] = field(default_factory=dict)
    #: Time that each running task of a kind has run.
    running: Mapping[Kind, Sequence[float]] = field(default_factory=dict)
    #: Expected time until blocked tasks are ready, their kind and number, the soonest first.
    coming: Sequence[tuple[float, Kind, int]] = ()
    #: Possible durations of all tasks, with weights that sum to 1. If empty, a policy makes them
    #: from ``coming`` and the task model.
    outlooks: Sequence[Outlook] = ()
    #: Number of all tasks that the pool has received.
    submitted: int = 0
    #: True if the known tasks are all that will ever come. Otherwise they are a stream, to which
    #: tasks may be added at any time.
    graph: bool = False
    #: Expected time from the request of a worker until it connects.
    startup_s: float = 1.0
    billed_startup_s: float = 0.0
    #: Shortest billed time of a worker.
    billed_least_s: float = 0.0


@dataclass(frozen=True)
class PoolDecision:
    """Worker count, reason, and predicted seconds until the known tasks finish."""

    workers: int
    reason: str
    predicted_s: float | None = None


class PoolPolicy(Protocol):
    """Policy for the worker count of one pool, with a separate object for each pool."""

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """Return a count of at least ``view.busy``, unless ``view.maximum`` is lower."""
