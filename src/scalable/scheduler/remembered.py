"""Outcomes of remembered calls, as the scheduler hears them from workers and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.spec.remembered import Kind, RememberedOutcome


@dataclass(frozen=True)
class HeardOutcomes:
    """Outcomes of calls of one task name and tag.

    Attributes
    ----------
    name, tag
        Name of the task; tag of its pool, or None.
    outcomes
        The outcomes.
    task_id
        Key of the task that made the calls; None if their client has found the results.
    """

    name: str
    tag: str | None
    outcomes: Sequence[RememberedOutcome]
    task_id: str | None = None

    def rows(self, timestamp: float) -> list[Mapping[str, Any]]:
        """Return the rows of remembered.jsonl."""
        place = {"task_name": self.name, "tag": self.tag, "task_id": self.task_id}
        return [
            {**place, "timestamp": timestamp, **outcome.to_message()} for outcome in self.outcomes
        ]


def take_found(
    hear: Callable[[HeardOutcomes], None], calls: Iterable[Sequence[Any]], client: str
) -> None:
    """Hear of the calls whose results a client has found.

    Parameters
    ----------
    hear
        Function that hears the outcomes of each task name and tag.
    calls
        Task name, tag or "", number of calls and seconds saved, of each task name and tag.
    client
        Id of the client.
    """
    del client
    for name, tag, count, saved_s in calls:
        outcome = RememberedOutcome(Kind.FOUND, int(count), float(saved_s))
        hear(HeardOutcomes(str(name), tag or None, (outcome,)))
