"""What a scaler says is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScaleDecision:
    """Workers that pools are to gain and to lose, and why.

    Attributes
    ----------
    workers_to_add, workers_to_remove
        Tag -> workers; tags that do not change are left out.
    reasoning
        In words.
    confidence
        Probability, from 0 to 1, that what is pending will have ended after 0.8 to 1.25 times the
        predicted time.
    predicted_completion_time
        Seconds from ``timestamp`` until what is pending will have ended, with the workers that the
        decision leads to; None where that is not known.
    timestamp
        When it was made, in epoch seconds.
    active_workers
        Tag -> workers that it was made for. Who carries it out takes workers that were asked for
        meanwhile, and have not come yet, off what is to be added.
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
        return any(self.workers_to_add.values()) or any(self.workers_to_remove.values())

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the pools that it names."""
        return tuple(dict.fromkeys([*self.workers_to_add, *self.workers_to_remove]))

    def counts(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Tag -> workers that are to be wanted once it is carried out.

        What was asked for since the workers were counted, and is still under way, is part of the
        change and not made again.

        Parameters
        ----------
        wanted
            Tag -> workers that are wanted now, for each of :attr:`tags`.
        """
        return {tag: self._count(tag, wanted[tag]) for tag in self.tags}

    def _count(self, tag: str, wanted: int) -> int:
        change = self.workers_to_add.get(tag, 0) - self.workers_to_remove.get(tag, 0)
        target = self.active_workers.get(tag, wanted) + change
        if change > 0:
            return min(wanted + change, max(wanted, target))
        return max(0, wanted + change, min(wanted, target))
