"""Nouns of the history: an earlier run, and its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Share of the length of a task by which times of different workers count as equal.
_SAME_MOMENT = 0.02


class CallRecord(NamedTuple):
    """Successful call: seconds, and bytes of memory and input (None if unknown)."""

    tag: str
    task: str
    duration_s: float
    memory: int | None = None
    input_bytes: int | None = None


class Span(NamedTuple):
    """Begin of the first and end of the last call of a task, in seconds since 1970."""

    begin: float
    end: float

    def overlaps(self, earlier: Span) -> bool:
        """Return whether the first call began before all calls of an earlier task had ended."""
        # Clocks of workers differ a little.
        return self.begin < earlier.end - _SAME_MOMENT * (earlier.end - earlier.begin)


@dataclass(frozen=True)
class EarlierRun:
    """Measurements of one run.

    Attributes
    ----------
    run_id, target, status
        Values of run.json.
    calls
        Successful calls in the order in which they ended; of large runs, a random sample of each
        task's calls, or only the last calls if the run did not end in order.
    whole
        Whether the other values are from all calls of the run.
    counts
        (tag, task) -> number of successful calls, and of those whose remembered results were found:
        an empty store would have had them run.
    spans
        (tag, task) -> its :class:`Span`, if the whole run was read and no calls came in bundles.
    startups_s
        Pairs of a tag and the seconds from the request of a worker until it connected.
    span_s
        Result of :meth:`.WorkSpan.seconds`; None if only a part of the run was read.
    predicted_s, overhead
        Predicted time and overhead from the run's plan, see :class:`scalable.spec.Plan`. The time
        is None if the plan predicted no time, or guessed the number or length of a task's calls: a
        guess does not show how good predictions are. Nor does a run that found results of calls
        which the plan expected to run.
    provider
        Provider in run.json; empty if it is not known.
    """

    run_id: str
    target: str
    status: str
    calls: tuple[CallRecord, ...] = ()
    whole: bool = True
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    spans: Mapping[tuple[str, str], Span] = field(default_factory=dict)
    startups_s: tuple[tuple[str, float], ...] = ()
    span_s: float | None = None
    predicted_s: float | None = None
    overhead: float = 1.0
    provider: str = ""
