"""Rows of ``scaling.jsonl``."""

from __future__ import annotations

import time
from typing import Any


def scaling_row(tag: str, before: int, after: int, reason: str, source: str) -> dict[str, Any]:
    """Return the row of a change of a wanted count.

    Parameters
    ----------
    tag, before, after
        The pool and its counts.
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
