"""Measurements of one run for the next plan, collected from its rows. Does no I/O."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Self

from scalable.runs.calls import WorkSpan, each_call, number_in, outcomes_in, text_in

#: Maximum number of tasks that a large run keeps for plans: of one name (as many as a task model
#: keeps), of all names together, and of each of very many names.
CALLS_OF_A_TASK, CALLS_OF_A_RUN, LEAST_CALLS_OF_A_TASK = 1000, 2000, 50
#: Longer running times, in seconds, come from damaged records: this is 30 years.
LONGEST_CALL_S = 1e9
#: All numbers of records are less than this; others are ignored.
MOST = 1e18

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
_ORDER = itemgetter(0)
_NO_CALL = (0, CallRecord("", "", 0.0))


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run, as in :class:`.EarlierRun`."""

    calls: tuple[CallRecord, ...] = ()
    whole: bool = True
    counts: Mapping[_Task, int] = field(default_factory=dict)
    spans: Mapping[_Task, NameSpan] = field(default_factory=dict)
    startups_s: tuple[tuple[str, float], ...] = ()
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


class RunMeter:
    """Collector that computes one run's measurements from its rows.
    ``sampled`` keeps a random sample of tasks, since the last tasks are often the longest.
    """

    def __init__(self, workers: Sequence[Mapping[str, Any]], *, sampled: bool = False) -> None:
        self._workers, self._sampled = workers, sampled
        self._counts: Counter[_Task] = Counter()
        self._ended = 0
        #: By tag and name: pairs of a sequence number and a task.
        self._calls: dict[_Task, list[tuple[int, CallRecord]]] = {}
        self._spans: dict[_Task, NameSpan] = {}
        self._bundled: set[_Task] = set()
        self._work = WorkSpan()
        self._chance = random.Random(0)  # noqa: S311 - a sample, the same each time

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._work.add(rows)
        for row in rows:
            if row.get("state") == "succeeded":
                self._add_succeeded(row)

    def _add_succeeded(self, row: Mapping[str, Any]) -> None:
        tag, task = text_in(row, "tag"), text_in(row, "task_name")
        if tag is None or task is None:
            return
        if row.get("calls") is None:
            self._add_call((tag, task), row)
        else:
            self._bundled.add((tag, task))
            for call in each_call((row,)):
                self._add_call((tag, task), call)
        end, length = _number(row, "timestamp"), _number(row, "duration_s")
        if end is not None and length is not None:
            known = self._spans.get((tag, task), NameSpan(end, end))
            self._spans[tag, task] = NameSpan(min(known.begin, end - length), max(known.end, end))

    def _add_call(self, task: _Task, row: Mapping[str, Any]) -> None:
        duration = _number(row, "duration_s")
        if duration is None or not 0 <= duration <= LONGEST_CALL_S:
            return
        count = self._counts[task] = self._counts[task] + 1
        kept = self._calls.setdefault(task, [])
        if not self._sampled or len(kept) < CALLS_OF_A_TASK:
            place = len(kept)
            kept.append(_NO_CALL)
        else:  # reservoir sampling: algorithm R of Vitter (1985)
            place = int(self._chance.random() * count)
            if place >= CALLS_OF_A_TASK:
                return
        self._ended += 1
        memory, size = _number(row, "peak_memory"), _number(row, "input_bytes")
        call = CallRecord(
            *task,
            float(duration),
            None if memory is None else int(memory),
            None if size is None else int(size),
        )
        kept[place] = self._ended, call

    def measurements(
        self, remembered: Iterable[Mapping[str, Any]] = (), *, whole: bool = True
    ) -> Measurements:
        """Return the measurements. ``whole`` is True if all rows were added."""
        hits = [(tag or "", name, o.count) for name, tag, o in outcomes_in(remembered) if o.is_hit]
        counts = self._counts.copy()
        for tag, name, count in hits:
            counts[tag, name] += count
        spans = {task: span for task, span in self._spans.items() if task not in self._bundled}
        return Measurements(
            calls=tuple(call for _, call in sorted(self._kept(), key=_ORDER)),
            whole=whole,
            counts=counts,
            spans=spans if whole else {},
            startups_s=tuple(_startups(self._workers)),
            span_s=self._work.seconds(self._workers) if whole else None,
            has_hits=bool(hits),
        )

    def _kept(self) -> Iterator[tuple[int, CallRecord]]:
        most = max(LEAST_CALLS_OF_A_TASK, CALLS_OF_A_RUN // max(1, len(self._calls)))
        for kept in self._calls.values():
            too_many = self._sampled and len(kept) > most
            yield from self._chance.sample(kept, most) if too_many else kept


def _startups(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    asked: dict[str, float] = {}
    for row in rows:
        worker, tag, moment = row.get("worker"), row.get("tag"), _number(row, "timestamp")
        if not isinstance(worker, str) or not isinstance(tag, str) or moment is None:
            continue
        if row.get("event") == "requested":
            asked.setdefault(worker, moment)
        elif row.get("event") == "started" and worker in asked:
            yield tag, max(0.0, moment - asked.pop(worker))


def _number(row: Mapping[str, Any], key: str) -> float | None:
    return number_in(row, key, MOST)
