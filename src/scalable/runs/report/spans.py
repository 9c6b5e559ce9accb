"""Times when tasks ran and workers were connected, from a record's rows. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple

from scalable.runs import REASON_LOST, RunRecord

#: Recorded numbers larger than this are ignored, because their products would overflow.
_MOST = 1e100


class Span(NamedTuple):
    """Task (or bundle) on a worker, with its times in epoch seconds and its name."""

    worker: str
    begin: float
    end: float
    name: str
    tag: str
    failed: bool


class Presence(NamedTuple):
    """Time in epoch seconds during which a worker of a tag was connected."""

    worker: str
    tag: str
    begin: float
    end: float
    lost: bool = False


def number(value: object) -> float | None:
    """Return a recorded number as a float, or None for other values and too large numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None


def text(value: object) -> str:
    """Return a recorded string, or an empty one for any other value."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded JSON object, or an empty mapping for any other value."""
    return value if isinstance(value, Mapping) else {}


class Spans:
    """Spans of tasks that ran on a worker, collected from the rows of ``tasks.jsonl``."""

    def __init__(self) -> None:
        self._found: list[Span] = []
        self._running: dict[str, Mapping[str, Any]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            state, task_id = row.get("state"), row.get("task_id")
            if state == "running":
                if isinstance(task_id, str):
                    self._running[task_id] = row
            elif state in ("succeeded", "failed", "cancelled"):
                if isinstance(task_id, str):
                    self._running.pop(task_id, None)
                end, length = number(row.get("timestamp")), number(row.get("duration_s"))
                if end is not None and length is not None and length >= 0:
                    self._found += _span(row, end - length, end, failed=state == "failed")

    def until(self, moment: float) -> list[Span]:
        """Return the spans. Spans of running tasks end at ``moment`` (epoch seconds)."""
        begun = ((row, number(row.get("timestamp"))) for row in self._running.values())
        running = [
            span
            for row, begin in begun
            if begin is not None and begin <= moment
            for span in _span(row, begin, moment, failed=False)
        ]
        return self._found + running


def _span(row: Mapping[str, Any], begin: float, end: float, *, failed: bool) -> list[Span]:
    worker = row.get("worker")
    if not isinstance(worker, str):
        return []
    # Millions of spans share their strings.
    name = intern(text(row.get("task_name")) or text(row.get("task_id")))
    return [Span(intern(worker), begin, end, name, intern(text(row.get("tag"))), failed)]


def presences(rows: Iterable[Mapping[str, Any]], until: float) -> list[Presence]:
    """Return the times when workers were connected, up to ``until`` (epoch seconds)."""
    found: list[Presence] = []
    here: dict[str, tuple[str, float]] = {}
    for row in rows:
        worker, moment = row.get("worker"), number(row.get("timestamp"))
        if not isinstance(worker, str) or moment is None:
            continue
        if row.get("event") == "started":
            here.setdefault(worker, (str(row.get("tag")), moment))
        elif row.get("event") == "removed" and worker in here:
            tag, begin = here.pop(worker)
            lost = text(row.get("reason")).startswith(REASON_LOST)
            found.append(Presence(worker, tag, begin, max(begin, moment), lost))
    found += [
        Presence(worker, tag, begin, max(begin, until)) for worker, (tag, begin) in here.items()
    ]
    return found


def last_moment(record: RunRecord, of_calls: float) -> float:
    """Return the latest row's epoch seconds, or 0. ``of_calls`` is the latest task row's time."""
    moments = (number(row.get("timestamp")) for row in record.workers)
    return max(0.0, of_calls, *(moment for moment in moments if moment is not None))


def most_at_once(intervals: Iterable[tuple[float, float]]) -> int:
    """Return the largest number of overlapping intervals."""
    changes = sorted(change for begin, end in intervals for change in ((begin, 1), (end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def merged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as disjoint intervals, in ascending order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
