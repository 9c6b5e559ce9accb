"""Measurements of one run for the next plan, collected from its rows. Does no I/O."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from operator import itemgetter
from typing import Any, NamedTuple, Self

from scalable.runs.calls import RecordedTasks, outcomes_in, presences
from scalable.runs.streams import Row

#: Maximum number of tasks that a large run keeps for plans: of one name (as many as a task model
#: keeps), of all names together, and of each of very many names.
CALLS_OF_A_TASK, CALLS_OF_A_RUN, LEAST_CALLS_OF_A_TASK = 1000, 2000, 50
#: Longer running times, in seconds, come from damaged records: this is 30 years.
LONGEST_CALL_S = 1e9
#: Two workers' times count as equal if they differ by less than this part of the name's span.
_SAME_MOMENT = 0.02


class CallRecord(NamedTuple):
    """Running seconds of a successful task, and bytes of its memory and input (None: unknown)."""

    tag: str
    task: str
    duration_s: float
    memory: int | None = None
    input_bytes: int | None = None


class NameSpan(NamedTuple):
    """Start of the first and finish of the last task of a name, in epoch seconds."""

    begin: float
    end: float

    def overlaps(self, earlier: NameSpan) -> bool:
        """Return whether the first task started before all tasks of an earlier name finished."""
        # Clocks of workers differ a little.
        return self.begin < earlier.end - _SAME_MOMENT * (earlier.end - earlier.begin)


#: Tag and name of a task.
_Task = tuple[str, str]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run."""

    #: Successful tasks in finishing order. For large runs a random sample per name, or the last
    #: ones of an unfinished record.
    calls: tuple[CallRecord, ...] = ()
    #: True if the other values come from all tasks of the run.
    whole: bool = True
    #: Successful tasks and cache hits by (tag, name). A run with an empty cache executes the hits.
    counts: Mapping[_Task, int] = field(default_factory=dict)
    #: Time spans by (tag, name), if the whole run was read and no tasks came in bundles.
    spans: Mapping[_Task, NameSpan] = field(default_factory=dict)
    #: Pairs of a tag and the seconds from the request of a worker until it connected.
    startups_s: tuple[tuple[str, float], ...] = ()
    #: Seconds from the start-up to the last finish, or None if only a part of the run was read.
    span_s: float | None = None
    #: True if cached results of tasks were found.
    has_hits: bool = False

    def to_dict(self) -> dict[str, Any]:
        tasks = {task: place for place, task in enumerate(self.counts)}
        return {
            "tasks": [
                [*task, count, *self.spans.get(task, ())] for task, count in self.counts.items()
            ],
            "calls": [
                [tasks[tag, task], duration_s, memory, input_bytes]
                for tag, task, duration_s, memory, input_bytes in self.calls
            ],
            "startups_s": self.startups_s,
            "span_s": self.span_s,
            "has_hits": self.has_hits,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        rows = values["tasks"]
        tasks: list[_Task] = [(tag, task) for tag, task, *_ in rows]
        return cls(
            calls=tuple(
                CallRecord(tasks[task][0], tasks[task][1], duration_s, memory, size)
                for task, duration_s, memory, size in values["calls"]
            ),
            counts={(tag, task): count for tag, task, count, *_ in rows},
            spans={(tag, task): NameSpan(*span) for tag, task, _, *span in rows if span},
            startups_s=tuple((tag, seconds) for tag, seconds in values["startups_s"]),
            span_s=values["span_s"],
            has_hits=values["has_hits"],
        )


def measure(
    calls: RecordedTasks,
    workers: Iterable[Row],
    remembered: Iterable[Row],
    *,
    whole: bool = True,
    sampled: bool = False,
) -> Measurements:
    """Return the measurements of a run. ``whole`` is True if ``calls`` has all of its tasks.
    ``sampled`` keeps a random sample of tasks, since the last tasks are often the longest.
    """
    tasks = {(tag, name): own for (tag, name), own in calls.succeeded().items() if tag is not None}
    most = max(LEAST_CALLS_OF_A_TASK, CALLS_OF_A_RUN // max(1, len(tasks)))
    most = min(most, CALLS_OF_A_TASK)
    chance = random.Random(0)  # noqa: S311 - a sample, the same each time
    counts: Counter[_Task] = Counter()
    spans: dict[_Task, NameSpan] = {}
    kept: list[tuple[float, CallRecord]] = []
    for task, own in tasks.items():
        numbers, durations = array("i"), array("d")
        for call in own:
            for duration in calls.durations(call):
                if 0 <= duration <= LONGEST_CALL_S:
                    numbers.append(call)
                    durations.append(duration)
        if durations:
            counts[task] = len(durations)
        places: Sequence[int] = range(len(durations))
        if sampled and len(places) > most:
            places = sorted(chance.sample(places, most))
        for place in places:
            call, of = numbers[place], calls.measurements
            sizes = (of[key][call] for key in ("peak_memory", "input_bytes"))
            known = (None if isnan(size) else int(size) for size in sizes)
            kept.append((calls.ended[call], CallRecord(*task, durations[place], *known)))
        if whole and not calls.bundles.keys() & set(own):
            ends = [calls.ended[call] for call in numbers]
            begins = [end - duration for end, duration in zip(ends, durations, strict=True)]
            if isfinite(sum(ends)) and ends:
                spans[task] = NameSpan(min(begins), max(ends))
    hits = [(tag or "", name, o.count) for name, tag, o in outcomes_in(remembered) if o.is_hit]
    for tag, name, count in hits:
        counts[tag, name] += count
    return Measurements(
        calls=tuple(call for _, call in sorted(kept, key=itemgetter(0))),
        whole=whole,
        counts=counts,
        spans=spans,
        startups_s=tuple(
            (each.tag, max(0.0, each.begin - each.requested))
            for each in presences(workers)
            if each.requested is not None
        ),
        span_s=sum(parts) if whole and (parts := calls.work_parts(workers)) else None,
        has_hits=bool(hits),
    )
