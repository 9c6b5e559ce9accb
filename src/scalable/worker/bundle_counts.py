"""What the records are told of a bundle: how many calls, how long they took, what failed."""

from __future__ import annotations

import traceback
from typing import Any

from scalable.protocol.measured import BUNDLE_ACTION, SHARES
from scalable.quantiles import quantile

#: So many failed calls of a bundle are described; the others are counted.
DESCRIBED = 3


class BundleCounts:
    """Counts the calls of one bundle."""

    def __init__(self) -> None:
        self.durations: list[float] = []
        self._failed = 0
        self._failures: list[dict[str, str]] = []
        #: For each call, where they are recorded one by one.
        self.rows: list[tuple[bool, tuple[float, float, float, int | None]]] = []

    def failed(self, error: BaseException) -> None:
        """A call has failed."""
        self._failed += 1
        if len(self._failures) < DESCRIBED:
            self._failures.append(
                {
                    "failure_class": type(error).__name__,
                    "message": _shown(error),
                    "traceback": "".join(traceback.format_tb(error.__traceback__)),
                }
            )

    def entry(self) -> dict[str, Any]:
        """What is sent along with the bundle's timings; seconds."""
        ordered = sorted(self.durations)
        return {
            "action": BUNDLE_ACTION,
            "start": 0.0,
            "stop": 0.0,
            "calls": len(ordered),
            "failed": self._failed,
            "total_s": sum(ordered),
            "quantiles_s": [quantile(ordered, q) for q in SHARES] if ordered else [],
            "failures": self._failures,
            "rows": self.rows,
        }


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"it cannot be shown: {type(other).__name__}"
