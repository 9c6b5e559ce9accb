"""Statistics of a bundle for the run's records: calls, durations and failures."""

from __future__ import annotations

import traceback
from typing import Any

from scalable.protocol.measured import BUNDLE_ACTION, SHARES
from scalable.quantiles import quantile

#: Largest number of failed calls of a bundle that are described; the others are only counted.
DESCRIBED = 3


class BundleCounts:
    """Statistics of the calls of one bundle (a batch of calls that is one Dask task).

    Attributes
    ----------
    durations
        Duration of each call in seconds.
    rows
        Success and measurements of each call; empty unless calls are recorded one by one.
    """

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.rows: list[tuple[bool, tuple[float, float, float, int | None]]] = []
        self._failed = 0
        self._failures: list[dict[str, str]] = []

    def failed(self, error: BaseException) -> None:
        """Count a failed call; describe the error of the first ``DESCRIBED`` failed calls."""
        self._failed += 1
        if len(self._failures) < DESCRIBED:
            self._failures.append(
                {
                    "failure_class": type(error).__name__,
                    "message": _message_of(error),
                    "traceback": "".join(traceback.format_tb(error.__traceback__)),
                }
            )

    def entry(self) -> dict[str, Any]:
        """Return the statistics as an entry for the Dask task's timings; times are in seconds."""
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


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"the message cannot be shown: str() raised {type(other).__name__}"
