"""Times at which calls ran and workers were connected, from the rows of a record. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple

from scalable.telemetry import REASON_LOST, RunRecord

#: Recorded numbers larger than this are ignored, because their products would overflow.
_MOST = 1e100


class Span(NamedTuple):
    """A call (or bundle of calls) on a worker: its times in epoch seconds, and its task name."""

    worker: str
    begin: float
    end: float
    name: str
    tag: str
    failed: bool


class Presence(NamedTuple):
    """The time in epoch seconds in which a worker of a tag was connected."""

    worker: str
    tag: str
    begin: float
    end: float
    lost: bool = False


def number(value: object) -> float | None:
    """Return a recorded number as a float, or None if it is anything else or too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None


def text(value: object) -> str:
    """Return a recorded text; an empty text for anything else."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


class Spans:
    """Spans of calls that ran on a worker, collected from the rows of tasks.jsonl."""

    def __init__(self) -> None:
        self._found: list[Span] = []
        self._running: dict[str, Mapping[str, Any]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the next rows."""
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
        """Return the spans in the order of their ends.

        Parameters
        ----------
        moment
            Assumed end, in epoch seconds, of calls that have not ended.
        """
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
    # Millions of spans share their texts.
    name = intern(text(row.get("task_name")) or text(row.get("task_id")))
    return [Span(intern(worker), begin, end, name, intern(text(row.get("tag"))), failed)]


def presences(rows: Iterable[Mapping[str, Any]], until: float) -> list[Presence]:
    """Return the times in which workers were connected, in the order of their ends.

    Parameters
    ----------
    rows
        Rows of workers.jsonl.
    until
        Assumed end, in epoch seconds, of workers that have not left.
    """
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
    """Return the time of the last row about calls and workers, or 0 without any.

    Parameters
    ----------
    record
        Record of the run.
    of_calls
        Time of the last row about calls, in epoch seconds.
    """
    moments = (number(row.get("timestamp")) for row in record.workers)
    return max(0.0, of_calls, *(moment for moment in moments if moment is not None))


def most_at_once(intervals: Iterable[tuple[float, float]]) -> int:
    """Return the largest number of intervals that contain one moment."""
    changes = sorted(change for begin, end in intervals for change in ((begin, 1), (end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def merged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as intervals that do not overlap, in ascending order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
