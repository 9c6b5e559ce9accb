"""Answers of a scheduler to the heartbeats of managers."""

from __future__ import annotations

from typing import Any, TypedDict


class HeartbeatAnswer(TypedDict):
    """The answer to a manager's heartbeat."""

    #: True if this process is attached; False if another process has its id.
    known: bool
    #: Fields of :class:`scalable.manager.decisions.WorkerView` by worker name.
    workers: dict[str, dict[str, Any]]
    #: Mean running time of the slowest kind of task; 0 before any task has run.
    longest_s: float
    #: Tag -> (serial number of the order, number of workers to provide).
    orders: dict[str, tuple[int, int]]
    #: True if the cluster is stopping, so that the manager must stop all of its workers.
    end: bool
    #: Worker name -> its address when the scheduler stopped it or it announced its exit; its end
    #: was not a crash.
    dismissed: dict[str, str]
    #: True if the scheduler counts costs, so that reports must contain charges.
    counts_costs: bool


def refused_heartbeat() -> HeartbeatAnswer:
    """Return the answer to a manager under whose id another process is attached."""
    return {
        "known": False,
        "workers": {},
        "longest_s": 0.0,
        "orders": {},
        "end": False,
        "dismissed": {},
        "counts_costs": False,
    }
