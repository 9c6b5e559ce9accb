"""Failures in the record of a run, grouped by their cause. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from scalable.frames import own_frame_in
from scalable.model import FailureDetails
from scalable.model.codec import Noun
from scalable.runs.streams import Row, mapping, number, text
from scalable.views.columns import cause_of


@dataclass(frozen=True)
class FailedRow(Noun):
    """Row of ``failures.jsonl``: a failed task, a lost worker, or a degraded pool."""

    failure_class: str
    message: str
    #: Epoch seconds, None if not recorded.
    timestamp: float | None
    #: Number of failures that the row stands for.
    count: int
    task_id: str | None
    task_name: str | None
    tag: str | None
    #: Position of the task in its bundle, None for other tasks.
    position: int | None
    #: Arguments, code location and worker.
    details: FailureDetails
    traceback: str | None


@dataclass(frozen=True)
class FailureCause(Noun):
    """Failures with one cause, see :func:`.cause_of`."""

    failure_class: str
    #: Frame of the user's code, if known.
    frame: str | None
    count: int
    #: Names of the failed tasks, in the order of the first failures.
    task_names: tuple[str, ...]
    #: Failures with this cause, the most detailed one first.
    failures: tuple[FailedRow, ...]


def failed_rows(rows: Iterable[Row]) -> Iterator[FailedRow]:
    """Yield the failures in rows of ``failures.jsonl``, without the error of the script itself."""
    for row in rows:
        details = mapping(row.get("details"))
        if details.get("phase") == "workflow":
            continue
        count, position = row.get("count"), details.get("position")
        trace = text(details.get("traceback"))
        known = FailureDetails.from_dict(details)
        yield FailedRow(
            failure_class=text(row.get("failure_class")) or "unknown",
            message=text(row.get("message")) or "",
            timestamp=number(row.get("timestamp")),
            count=count if isinstance(count, int) and count > 0 else 1,
            task_id=text(details.get("task_id")),
            task_name=text(details.get("task_name")),
            tag=text(details.get("tag")),
            position=position if isinstance(position, int) else None,
            details=replace(known, frame=known.frame or own_frame_in(trace or "")),
            traceback=trace,
        )


def causes(rows: Iterable[Row]) -> tuple[FailureCause, ...]:
    """Group failures by cause, the most frequent cause first."""
    groups: dict[str, list[FailedRow]] = {}
    for failed in failed_rows(rows):
        cause = cause_of(failed.failure_class, failed.details.frame, failed.message)
        groups.setdefault(cause, []).append(failed)
    found = [
        FailureCause(
            failure_class=group[0].failure_class,
            frame=group[0].details.frame,
            count=sum(failed.count for failed in group),
            task_names=tuple(dict.fromkeys(f.task_name for f in group if f.task_name)),
            failures=tuple(sorted(group, key=lambda failed: failed.traceback is None)),
        )
        for group in groups.values()
    ]
    return tuple(sorted(found, key=lambda cause: -cause.count))
