"""Events of units and pools, as rows of a run's record with the stream under ``"stream"``."""

from __future__ import annotations

import time
from typing import Any

Event = dict[str, Any]


def worker_event(event: str, worker: str, tag: str, reason: str | None = None) -> Event:
    """Return the event of a worker that was ``requested`` or ``removed``."""
    return {
        "stream": "workers",
        "event": event,
        "worker": worker,
        "tag": tag,
        "timestamp": time.time(),
        "reason": reason,
    }


def degraded(tag: str, reason: str) -> Event:
    """Return the event of a pool that is degraded: no more of its workers are started."""
    return {
        "stream": "failures",
        "failure_class": "PoolDegraded",
        "message": f"pool {tag!r} is degraded: {reason}",
        "timestamp": time.time(),
        "details": {"phase": "start", "tag": tag},
    }
