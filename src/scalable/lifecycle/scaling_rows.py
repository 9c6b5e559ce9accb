"""Rows of ``scaling.jsonl``, the changes of worker counts in a run record."""

from __future__ import annotations

import time
from typing import Any


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
