"""Rows about failed tasks, for run records and for readers of a cluster's events."""

from __future__ import annotations

import time
from typing import Any

from scalable.scheduler.failed_calls import GivenUp
from scalable.scheduler.ledger import EndedCall


def failure_rows(end: EndedCall | GivenUp) -> list[dict[str, Any]]:
    """Return a row of ``failures.jsonl`` for each failed task that is reported together."""
    if not end.failures:
        return []
    now = time.time()
    names = {"task_id": str(end.call.key), "task_name": end.call.name, "tag": end.call.tag}
    return [
        {
            "failure_class": failed.failure_class,
            "message": failed.message,
            "timestamp": now,
            "count": failed.count,
            "details": {
                "phase": "run",
                **names,
                "position": failed.position,
                **failed.details.to_dict(),
                "traceback": failed.traceback,
            },
        }
        for failed in end.failures
    ]
