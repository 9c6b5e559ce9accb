"""Cache outcomes of tasks, as workers and clients report them to the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.model.remembered import Kind, RememberedOutcome


@dataclass(frozen=True)
class HeardOutcomes:
    """Cache outcomes of tasks of one name and tag."""

    name: str
    tag: str | None
    outcomes: Sequence[RememberedOutcome]
    #: Key of the Dask task that ran them, None if their client found the results.
    task_id: str | None = None

    def rows(self, timestamp: float) -> list[Mapping[str, Any]]:
        place = {"task_name": self.name, "tag": self.tag, "task_id": self.task_id}
        return [
            {**place, "timestamp": timestamp, **outcome.to_message()} for outcome in self.outcomes
        ]


def take_found(
    hear: Callable[[HeardOutcomes], None], calls: Iterable[Sequence[Any]], client: str
) -> None:
    """Report a client's cache hits: name, tag or "", number, and seconds saved."""
    del client
    for name, tag, count, saved_s in calls:
        outcome = RememberedOutcome(Kind.FOUND, int(count), float(saved_s))
        hear(HeardOutcomes(str(name), tag or None, (outcome,)))
