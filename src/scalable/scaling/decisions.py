"""What is to change, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ScaleDecision:
    """How many workers to add to pools and to take from them.

    Attributes
    ----------
    workers_to_add, workers_to_remove
        Tag -> workers, at least one; a tag without a change is in neither.
    reasoning
        Why, for people.
    confidence
        Probability, 0 to 1, that the work ends within 0.8 to 1.25 times the predicted time.
    predicted_completion_time
        Seconds from now until the pending work has ended once the decision is carried out; 0.0 with
        nothing pending, None where it is not known.
    timestamp
        When it was made, in epoch seconds.
    """

    workers_to_add: Mapping[str, int] = field(default_factory=dict)
    workers_to_remove: Mapping[str, int] = field(default_factory=dict)
    reasoning: str = ""
    confidence: float = 0.0
    predicted_completion_time: float | None = None
    timestamp: float = 0.0

    @property
    def has_changes(self) -> bool:
        """Whether any pool is to change."""
        return bool(self.workers_to_add or self.workers_to_remove)

    @property
    def changes(self) -> dict[str, int]:
        """Tag -> workers more, or less where it is negative."""
        less = {tag: -count for tag, count in self.workers_to_remove.items()}
        return {**self.workers_to_add, **less}

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return {
            "workers_to_add": dict(self.workers_to_add),
            "workers_to_remove": dict(self.workers_to_remove),
            "reasoning": self.reasoning,
            "confidence": self.confidence,
            "predicted_completion_time": self.predicted_completion_time,
            "timestamp": self.timestamp,
        }
