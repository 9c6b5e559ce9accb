"""What a policy is told of one pool, and what it answers. The same live and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalable.scaling.task_model import Kind, TaskModel


@dataclass(frozen=True)
class PoolView:
    """One pool at one moment. Lengths of time in seconds.

    Attributes
    ----------
    now
        Monotonic time.
    minimum, maximum
        Bounds of the count of workers; ``maximum`` None means without.
    slots
        Calls that one worker runs at once.
    wanted
        Workers that are wanted now.
    busy, idle
        Connected workers that are not leaving: those that run or hold calls, and the others.
    arriving
        For each worker that was asked for and has not connected, how long ago that was.
    queued
        Kind -> ready calls that do not run yet.
    running
        Kind -> for each running call, how long it has run for.
    coming
        Calls that wait for others: in how long they are expected to be ready, their kind, and how
        many; the soonest first.
    submitted
        Calls that the pool was given so far, ended ones included.
    graph
        Whether the calls that are known are taken to be all: what comes later follows from them. An
        open stream of calls otherwise.
    startup_s
        How long a worker takes from being asked for until it connects, as learned.
    billed_startup_s
        How much of that is paid for.
    billed_least_s
        A worker is paid for at least so long.
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
    """How many workers a pool is to have, why, and when the known calls will have ended."""

    workers: int
    reason: str
    predicted_s: float | None = None


class PoolPolicy(Protocol):
    """Decides for one pool; one object for each pool, it may remember what it saw."""

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """How many workers, in all, the pool is to have from now on.

        Never less than ``view.busy``, except above ``view.maximum``; busy workers are not removed.

        Parameters
        ----------
        view
            The pool.
        model
            What its calls take; it has seen those that ended.
        """
