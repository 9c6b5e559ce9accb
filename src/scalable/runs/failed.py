"""Failures in the record of a run, grouped by their cause, also as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalable.frames import own_frame_in
from scalable.harmless import one_line
from scalable.model import FailedCall, FailureDetails
from scalable.model.codec import Noun
from scalable.runs.streams import Row, mapping, number, text
from scalable.units import counted
from scalable.views.cluster_text import BLOCKS, FACTS, titled
from scalable.views.columns import cause_of
from scalable.views.tables import WIDTH, fitted


@dataclass(frozen=True)
class FailedRow(FailedCall, Noun):
    """Row of ``failures.jsonl``: failed tasks, a lost worker, or a degraded pool."""

    #: Epoch seconds, None if not recorded.
    timestamp: float | None = None
    task_id: str | None = None
    task_name: str | None = None
    tag: str | None = None


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


# As text and as JSON ------------------------------------------------------------------------------

#: Largest number of lines of an example's traceback and output, and of task names of a cause.
_LINES = 30
_NAMES = 5
#: Version of the JSON form. It increases when a key is removed or changes its meaning.
_VERSION = 1


def render_failed(run_id: str, found: Sequence[FailureCause], *, every: bool = False) -> str:
    """Return a run's failures as plain text, with one example (or ``every``) for each cause."""
    total = sum(cause.count for cause in found)
    if not total:
        return f"Run {one_line(run_id)}: no failures\n"
    counts = f"{counted(total, 'failure')}, {counted(len(found), 'cause')}"
    lines = [f"Run {one_line(run_id)}: {counts}"]
    for cause in found:
        lines += ["", *_cause(cause, every=every)]
    return "\n".join(lines) + "\n"


def failed_json(run_id: str, found: Sequence[FailureCause]) -> dict[str, Any]:
    """Return a run's failures by cause as JSON ``{"version": 1, "failed": ...}``."""
    return {
        "version": _VERSION,
        "failed": {
            "run_id": run_id,
            "count": sum(cause.count for cause in found),
            "causes": [cause.to_dict() for cause in found],
        },
    }


def _cause(cause: FailureCause, *, every: bool) -> Iterator[str]:
    where = f" at {cause.frame}" if cause.frame else ""
    yield cut(f"{cause.count} x {cause.failure_class}{where}", 4 * WIDTH)
    more = len(cause.task_names) - _NAMES
    names = ", ".join(cause.task_names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
    if names:
        yield _fact("tasks", names)
    shown = cause.failures if every else cause.failures[:1]
    for place, failed in enumerate(shown):
        if place:
            yield ""
        yield from _failed(failed, in_full=place == 0)
    left = cause.count - sum(failed.count for failed in shown)
    if left and not every:
        yield f"  and {left} more (--all shows them)"


def _failed(failed: FailedRow, *, in_full: bool) -> Iterator[str]:
    details = failed.details
    if failed.count > 1:
        yield _fact("count", f"{failed.count} tasks, not described individually")
    yield _fact("message", failed.message)
    known = {**vars(details), "task_id": failed.task_id, "frame": None}
    known["tries"] = details.tries if details.tries > 1 else None
    yield from (_fact(title.lower(), value) for title, value in titled(FACTS, known))
    if failed.position is not None:
        yield _fact("position in its bundle", str(failed.position))
    if not in_full:
        return
    for title, told in titled(BLOCKS, {**vars(details), "traceback": failed.traceback}):
        yield f"  {title.lower()}:"
        # Not splitlines(): it splits at characters that a terminal does not.
        for line in told.rstrip("\n").split("\n")[-_LINES:]:
            yield cut(f"    {line}", 2 * WIDTH)


def _fact(name: str, value: str) -> str:
    return cut(f"  {name}: {one_line(value)}", 4 * WIDTH)


def cut(line: str, width: int = WIDTH) -> str:
    """Return a line of at most ``width`` cells that keeps its indentation."""
    words = line.lstrip(" ")
    indent = len(line) - len(words)
    return " " * indent + fitted(words, width - indent)


def first_line(message: str) -> str:
    """Return the first line of a string, harmless for a terminal."""
    return one_line(message.strip().partition("\n")[0])
