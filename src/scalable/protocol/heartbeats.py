"""The answers of a scheduler to the heartbeats of managers."""

from __future__ import annotations

from typing import Any, TypedDict


class HeartbeatAnswer(TypedDict):
    """The answer to a manager's heartbeat.

    Attributes
    ----------
    known
        Whether this process is attached; False if another process has its id.
    workers
        Name of each worker of the manager -> fields of
        :class:`scalable.manager.decisions.WorkerView`.
    longest_s
        Mean running time in seconds of the slowest kind of call; 0 before any call has run.
    orders
        Tag -> (serial number of the order, number of workers that the manager must provide).
    end
        Whether the cluster is ending, so that the manager must stop all of its workers.
    dismissed
        Name of a worker -> address that it had when it was ended by the scheduler, or announced
        its end: the end was no crash.
    counts_costs
        Whether the scheduler counts costs, so that reports have to contain charges.
    """

    known: bool
    workers: dict[str, dict[str, Any]]
    longest_s: float
    orders: dict[str, tuple[int, int]]
    end: bool
    dismissed: dict[str, str]
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
