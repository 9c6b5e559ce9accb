"""Data types of the history: an earlier run, and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Share of a task name's time span by which times of different workers count as equal.
_SAME_MOMENT = 0.02


class CallRecord(NamedTuple):
    """Successful call: seconds, and bytes of memory and input (None if unknown)."""

    tag: str
    task: str
    duration_s: float
    memory: int | None = None
    input_bytes: int | None = None


class Span(NamedTuple):
    """Start of the first and finish of the last task of a name, in epoch seconds."""

    begin: float
    end: float

    def overlaps(self, earlier: Span) -> bool:
        """Return whether the first task started before all tasks of an earlier name finished."""
        # Clocks of workers differ a little.
        return self.begin < earlier.end - _SAME_MOMENT * (earlier.end - earlier.begin)


@dataclass(frozen=True)
class EarlierRun:
    """Measurements of one run."""

    run_id: str
    target: str
    status: str
    #: Successful tasks in finishing order. For large runs a random sample per name, or the last
    #: ones of an unfinished record.
    calls: tuple[CallRecord, ...] = ()
    #: True if the other values come from all tasks of the run.
    whole: bool = True
    #: Successful tasks and cache hits by (tag, name): an empty cache would have run the hits too.
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: By (tag, name), if the whole run was read and no tasks came in bundles.
    spans: Mapping[tuple[str, str], Span] = field(default_factory=dict)
    #: Pairs of a tag and the seconds from the request of a worker until it connected.
    startups_s: tuple[tuple[str, float], ...] = ()
    #: Result of :meth:`.WorkSpan.seconds`, or None if only a part of the run was read.
    span_s: float | None = None
    #: From the run's :class:`scalable.model.Plan`. None after a plan that guessed counts or
    #: durations, or after unexpected cache hits: these do not show how good predictions are.
    predicted_s: float | None = None
    overhead: float = 1.0
    provider: str = ""
