"""Events of workers and pools as rows of a run's record. Their ``"stream"`` names its file."""

from __future__ import annotations

import time
from typing import Any

from scalable.protocol.pools import shown

Event = dict[str, Any]


def worker_event(event: str, worker: str, tag: str, reason: str | None = None) -> Event:
    """Return the event for the request or the removal of a worker."""
    return {
        "stream": "workers",
        "event": event,
        "worker": worker,
        "tag": tag,
        "timestamp": time.time(),
        "reason": reason,
    }


def failure_event(failure_class: str, message: str, **details: Any) -> Event:
    """Return the event for a failure that is not a task's."""
    return {
        "stream": "failures",
        "failure_class": failure_class,
        "message": message,
        "timestamp": time.time(),
        "details": details,
    }


#: Prefix of the lines in which a worker reports that its scheduler does not answer.
SILENT_SCHEDULER = "the scheduler at "
#: Failure class of the event of :func:`failed_start`.
FAILED_START = "WorkerNotConnected"


def failed_start(tag: str, worker: str, reason: str) -> Event:
    """Return the event that a worker stopped before it connected to its scheduler."""
    words = f"a worker of {shown(tag)} has not connected: {reason}"
    return failure_event(FAILED_START, words, phase="start", tag=tag, worker=worker)


def billed(
    machine: str,
    tag: str,
    manager: str,
    seconds: float,
    cost: float,
    idle: float,
    budget: float | None = None,
) -> Event:
    """Return a machine's cost row. It replaces the machine's earlier rows.
    ``idle`` is the cost without tasks. The scheduler's row has the budget, but no tag or manager.
    """
    return {
        **worker_event("billed", machine, tag),
        "manager": manager,
        "used_s": round(seconds, 3),
        "cost": round(cost, 6),
        "idle_cost": round(idle, 6),
        "budget": budget,
    }


def scaling_row(tag: str, before: int, after: int, reason: str, source: str) -> dict[str, Any]:
    """Return the row for a change of a pool's desired count by a plan, ``manual`` or a policy."""
    return {
        "timestamp": time.time(),
        "tag": tag,
        "action": "scale-up" if after > before else "scale-down",
        "from": before,
        "to": after,
        "reason": reason,
        "source": source,
    }
