"""Failures of a run as plain text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalable.runs import FailedRow, FailureCause, RunRecord, causes
from scalable.runs.report.table import WIDTH, on_one_line, shorten

#: Largest number of lines of an example's traceback and output, and of task names of a cause.
_LINES = 30
_NAMES = 5


#: Version of the JSON form. It increases when a key is removed or changes its meaning.
_VERSION = 1


def render_failed(record: RunRecord, *, every: bool = False) -> str:
    """Return a run's failures as plain text, with one example (or ``every``) for each cause."""
    run_id, found = _run_id(record), causes(record.failures)
    total = sum(cause.count for cause in found)
    if not total:
        return f"Run {on_one_line(run_id)}: no failures\n"
    counts = f"{total} {'failure' if total == 1 else 'failures'}"
    counts += f", {len(found)} {'cause' if len(found) == 1 else 'causes'}"
    lines = [f"Run {on_one_line(run_id)}: {counts}"]
    for cause in found:
        lines += ["", *_cause(cause, every=every)]
    return "\n".join(lines) + "\n"


def failed_json(record: RunRecord) -> dict[str, Any]:
    """Return a run's failures by cause as JSON ``{"version": 1, "failed": ...}``."""
    found = causes(record.failures)
    return {
        "version": _VERSION,
        "failed": {
            "run_id": _run_id(record),
            "count": sum(cause.count for cause in found),
            "causes": [
                {
                    "failure_class": cause.failure_class,
                    "frame": cause.frame,
                    "count": cause.count,
                    "task_names": list(cause.task_names),
                    "failures": [failed.to_dict() for failed in cause.failures],
                }
                for cause in found
            ],
        },
    }


def _run_id(record: RunRecord) -> str:
    return str(record.run.get("run_id") or record.path.name)


def _cause(cause: FailureCause, *, every: bool) -> Iterator[str]:
    where = f" at {cause.frame}" if cause.frame else ""
    yield shorten(on_one_line(f"{cause.count} x {cause.failure_class}{where}"), 4 * WIDTH)
    more = len(cause.task_names) - _NAMES
    names = ", ".join(cause.task_names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
    if names:
        yield _fact("tasks", names)
    shown = cause.failures if every else cause.failures[:1]
    for number, failed in enumerate(shown):
        if number:
            yield ""
        yield from _failure(failed, in_full=number == 0)
    left = cause.count - sum(failed.count for failed in shown)
    if left and not every:
        yield f"  and {left} more (--all shows them)"


def _failure(failed: FailedRow, *, in_full: bool) -> Iterator[str]:
    details = failed.details
    if failed.count > 1:
        yield _fact("tasks", f"{failed.count}, not described individually")
    call = failed.task_id or ""
    if failed.position is not None:
        call += f", number {failed.position} of its bundle"
    facts = {
        "message": failed.message,
        "call": call,
        "arguments": details.arguments,
        "worker": details.worker,
        "tries": str(details.tries) if details.tries > 1 else None,
    }
    yield from (_fact(name, value) for name, value in facts.items() if value)
    if not in_full:
        return
    yield from _indented_text("standard error of the child process", details.stderr)
    yield from _indented_text("output of the child process", details.stdout)
    yield from _indented_text("last output of the worker", details.output)
    yield from _indented_text("traceback", failed.traceback)


def _fact(name: str, value: str) -> str:
    return shorten(f"  {name}: {on_one_line(value)}", 4 * WIDTH)


def _indented_text(name: str, text: str | None) -> Iterator[str]:
    if not text:
        return
    yield f"  {name}:"
    # Not splitlines(): it splits at characters that a terminal does not.
    for line in text.rstrip("\n").split("\n")[-_LINES:]:
        yield shorten(f"    {on_one_line(line)}", 2 * WIDTH)
