"""What is to change, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    active_workers
        Tag -> workers that it was made for. Workers that were asked for and have not come by then
        are taken off what is to be added.
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
        """Whether any pool is to change."""
        return any(self.changes.values())

    @property
    def changes(self) -> dict[str, int]:
        """Tag -> workers more, or less where it is negative."""
        less = {tag: -count for tag, count in self.workers_to_remove.items()}
        return {**self.workers_to_add, **less}

    def counts(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Tag -> workers that are to be wanted once it is carried out.

        Parameters
        ----------
        wanted
            Tag -> workers that are wanted now, for each tag that it names.
        """
        return {tag: self._count(tag, wanted[tag], change) for tag, change in self.changes.items()}

    def _count(self, tag: str, wanted: int, change: int) -> int:
        # What was asked for since and is under way is part of the change, and not made again.
        target = self.active_workers.get(tag, wanted) + change
        if change > 0:
            return min(wanted + change, max(wanted, target))
        return max(0, wanted + change, min(wanted, target))

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return asdict(self)
