"""Changes of worker counts decided by the adaptive scaler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ScaleDecision:
    """Decision of the adaptive scaler: workers to add to pools and to remove from pools.

    Attributes
    ----------
    workers_to_add, workers_to_remove
        Number of workers of each tag, at least one. Tags without a change are not included.
    reasoning
        Reasons of the decision.
    confidence
        Probability, 0 to 1, that the work finishes within 0.8 to 1.25 times the predicted time.
    predicted_completion_time
        Seconds until the pending work has finished if the decision is applied. It is 0.0 without
        pending work, and None if unknown.
    timestamp
        Time of the decision in epoch seconds.
    active_workers
        Number of active workers by tag on which the decision is based. When the decision is
        applied, workers requested since then are subtracted from the workers to add.
    """

    workers_to_add: Mapping[str, int] = field(default_factory=dict)
    workers_to_remove: Mapping[str, int] = field(default_factory=dict)
    reasoning: str = ""
    confidence: float = 0.0
    predicted_completion_time: float | None = None
    timestamp: float = 0.0
    active_workers: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_changes(self) -> bool:
        """True if the decision changes any pool."""
        return any(self.changes.values())

    @property
    def changes(self) -> dict[str, int]:
        """Change of the worker count of each tag, negative to remove workers."""
        less = {tag: -count for tag, count in self.workers_to_remove.items()}
        return {**self.workers_to_add, **less}

    def counts(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return the desired worker count of each changed tag after the decision.

        Parameters
        ----------
        wanted
            Currently desired worker counts. They must contain each changed tag.
        """
        return {tag: self._count(tag, wanted[tag], change) for tag, change in self.changes.items()}

    def _count(self, tag: str, wanted: int, change: int) -> int:
        # Workers that were requested since the decision are part of the change.
        target = self.active_workers.get(tag, wanted) + change
        if change > 0:
            return min(wanted + change, max(wanted, target))
        return max(0, wanted + change, min(wanted, target))

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)
