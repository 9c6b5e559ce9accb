"""Events of workers and pools, in the form of rows for the record of a run.

The key ``"stream"`` of an event names the file of the record (``workers`` or ``failures``).
"""

from __future__ import annotations

import time
from typing import Any

Event = dict[str, Any]


def worker_event(event: str, worker: str, tag: str, reason: str | None = None) -> Event:
    """Return the event that a worker was requested or removed.

    Parameters
    ----------
    event
        ``requested`` or ``removed``.
    worker, tag
        Name of the worker, and tag of its pool.
    reason
        Reason for the removal.
    """
    return {
        "stream": "workers",
        "event": event,
        "worker": worker,
        "tag": tag,
        "timestamp": time.time(),
        "reason": reason,
    }


def degraded(tag: str, reason: str) -> Event:
    """Return the event that a pool is degraded, so that no more workers are started for it."""
    return {
        "stream": "failures",
        "failure_class": "PoolDegraded",
        "message": f"pool {tag!r} is degraded: {reason}",
        "timestamp": time.time(),
        "details": {"phase": "start", "tag": tag},
    }


#: Beginning of the lines in which a worker writes that its scheduler does not answer.
SILENT_SCHEDULER = "the scheduler at "
#: Failure class of the event of :func:`failed_start`.
FAILED_START = "WorkerNotConnected"


def failed_start(tag: str, worker: str, reason: str) -> Event:
    """Return the event that a worker has ended before it connected to its scheduler."""
    return {
        "stream": "failures",
        "failure_class": FAILED_START,
        "message": f"a worker of pool {tag!r} has not connected: {reason}",
        "timestamp": time.time(),
        "details": {"phase": "start", "tag": tag, "worker": worker},
    }


def billed(
    machine: str,
    tag: str,
    manager: str,
    seconds: float,
    cost: float,
    idle: float,
    budget: float | None = None,
) -> Event:
    """Return the row about the cost of a machine; a later row about the machine replaces it.

    Parameters
    ----------
    machine, tag, manager
        Name of the machine (of the worker, if it has one of its own), tag of the pool, and id of
        the manager. Tag and manager are empty for the scheduler's machine.
    seconds
        Seconds for which the machine was used.
    cost, idle
        Cost so far, and the part for time without calls.
    budget
        Budget of the cluster, or None; only in the row about the scheduler's machine.
    """
    return {
        "stream": "workers",
        "event": "billed",
        "worker": machine,
        "tag": tag,
        "timestamp": time.time(),
        "reason": None,
        "manager": manager,
        "used_s": round(seconds, 3),
        "cost": round(cost, 6),
        "idle_cost": round(idle, 6),
        "budget": budget,
    }


def budget_reached(words: str, *, spent: bool) -> Event:
    """Return the event that most of a budget, or all of it, is spent."""
    return {
        "stream": "failures",
        "failure_class": "BudgetSpent" if spent else "BudgetNearlySpent",
        "message": words,
        "timestamp": time.time(),
        "details": {"phase": "run"},
    }


def scaling_row(tag: str, before: int, after: int, reason: str, source: str) -> dict[str, Any]:
    """Return the row that records a change of a pool's wanted worker count.

    Parameters
    ----------
    tag, before, after
        Tag of the pool, and its wanted count before and after the change.
    reason, source
        Reason of the change, and its source: ``plan``, ``manual`` or a policy.
    """
    return {
        "timestamp": time.time(),
        "tag": tag,
        "action": "scale-up" if after > before else "scale-down",
        "from": before,
        "to": after,
        "reason": reason,
        "source": source,
    }
