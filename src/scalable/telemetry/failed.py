"""Failures of a run as its record tells them, grouped by their cause. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from scalable.frames import own_frame_in
from scalable.spec import FailureDetails


@dataclass(frozen=True)
class FailedRow:
    """One row of failures.jsonl: a failed call, a lost worker, or a degraded pool.

    Attributes
    ----------
    failure_class, message
        Class name and message of the exception, or of the event.
    timestamp
        Seconds since 1970; None if it is not recorded.
    count
        Number of failures that the row stands for.
    task_id, task_name, tag
        Key, task name and tag of the call; None if the failure is not that of a call.
    position
        Position of the call in its bundle; None for other calls.
    details
        Arguments, place and worker.
    traceback
        Text of the traceback; None if it is not recorded.
    """

    failure_class: str
    message: str
    timestamp: float | None
    count: int
    task_id: str | None
    task_name: str | None
    tag: str | None
    position: int | None
    details: FailureDetails
    traceback: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Cause:
    """Failures of one class at one place.

    Attributes
    ----------
    failure_class, frame
        Class of the failures, and the frame of the user's code, if known.
    count
        Number of failures.
    task_names
        Task names of the failed calls, in the order of the first failures.
    failures
        The failures, the one that is told in most detail first.
    """

    failure_class: str
    frame: str | None
    count: int
    task_names: tuple[str, ...]
    failures: tuple[FailedRow, ...]


def failed_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[FailedRow]:
    """Yield the failures that rows of failures.jsonl tell of.

    The end of the script is not among them: it is the run's error, and often one of the others.
    """
    for row in rows:
        told = row.get("details")
        details = told if isinstance(told, Mapping) else {}
        if details.get("phase") == "workflow":
            continue
        count, stamp, position = row.get("count"), row.get("timestamp"), details.get("position")
        trace = _text(details.get("traceback"))
        known = FailureDetails.from_dict(details)
        yield FailedRow(
            failure_class=_text(row.get("failure_class")) or "unknown",
            message=_text(row.get("message")) or "",
            timestamp=stamp if isinstance(stamp, (int, float)) else None,
            count=count if isinstance(count, int) and count > 0 else 1,
            task_id=_text(details.get("task_id")),
            task_name=_text(details.get("task_name")),
            tag=_text(details.get("tag")),
            position=position if isinstance(position, int) else None,
            details=replace(known, frame=known.frame or own_frame_in(trace or "")),
            traceback=trace,
        )


def causes(rows: Iterable[Mapping[str, Any]]) -> tuple[Cause, ...]:
    """Return the failures by class and place, the most frequent cause first."""
    groups: dict[tuple[str, str | None], list[FailedRow]] = {}
    for failed in failed_rows(rows):
        groups.setdefault((failed.failure_class, failed.details.frame), []).append(failed)
    found = [
        Cause(
            failure_class=name,
            frame=frame,
            count=sum(failed.count for failed in group),
            task_names=tuple(dict.fromkeys(f.task_name for f in group if f.task_name)),
            failures=tuple(sorted(group, key=lambda failed: failed.traceback is None)),
        )
        for (name, frame), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda cause: -cause.count))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
