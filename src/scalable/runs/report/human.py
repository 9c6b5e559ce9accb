"""Report of a run, and its failures, as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from scalable.harmless import one_line
from scalable.runs.failed import FailedRow, FailureCause, causes
from scalable.runs.reading import RunRecord
from scalable.runs.report.usage import (
    WIDTH,
    decisions_of_run,
    lost_in_words,
    task_rows,
    workers_of_run,
)
from scalable.runs.streams import number
from scalable.runs.summary import CostSummary, Summary, counts_of, epoch
from scalable.units import counted, format_bytes, format_duration
from scalable.views.cluster_text import BLOCKS, cache_in_words, reasons_in_words, titled
from scalable.views.columns import TASKS, parts_of
from scalable.views.explanation import short_key
from scalable.views.tables import counts_in_words, fitted, money

_NOT_CLOSED = {
    "interrupted": "its process stopped without closing the run; the record is incomplete",
    "running": "the record is incomplete",
}
#: Spaces at the start of a line, or a word with a colon and several spaces.
_LABEL = re.compile(r" {1,60}|\w+:  +")
_SHOWN_NAMES = 30
_SHOWN_RERUNS = 3
#: Maximum number of changes of pools, of reasons for misses, and of causes of failures.
_SHOWN = 10


def render_human(summary: Summary) -> str:
    """Return the report as plain text without colour. Only paths may exceed 100 columns."""
    blocks = [
        list(_head(summary)),
        *_tables(summary),
        list(_remembered(summary)),
        list(_workers(summary)),
        list(_cost(summary.cost)),
        list(_failures(summary)),
        list(_places(summary)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(summary: Summary) -> Iterator[str]:
    yield f"Run {one_line(summary.run_id)}"
    yield f"Status:   {said_status(summary)}"
    if summary.error:
        yield _cut(f"Error:    {_first_line(summary.error)}")
    provider = f" (provider {summary.provider})" if summary.provider else ""
    yield _cut(f"Project:  {one_line(summary.project)}")
    yield _cut(f"Target:   {one_line(summary.target + provider)}")
    yield f"Started:  {said_moment(summary.started_at)}"
    yield f"Time:     {said_time(summary)}"
    yield f"Tasks:    {counts_in_words(parts_of(counts_of(summary.tasks)))}"


def said_status(summary: Summary) -> str:
    """Return the status of a run with remarks."""
    failed = summary.tasks.get("failed", 0)
    status = fitted(summary.status, WIDTH // 2)
    if summary.status == "completed" and failed:
        status += f" with {counted(failed, 'failure')}"
    remarks = []
    if summary.status in _NOT_CLOSED:
        remarks.append(_NOT_CLOSED[summary.status])
    if summary.exit_code:
        remarks.append(f"exit code {summary.exit_code}")
    return status + (f" ({'; '.join(remarks)})" if remarks else "")


def said_moment(text: str | None) -> str:
    """Return a recorded time in a form such as ``2026-01-01 00:00:00 UTC``."""
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M:%S %Z}".rstrip()
    except ValueError:
        return "not known"


def said_time(summary: Summary) -> str:
    """Return the time of a run's tasks, as plans predict it, its start-up, and its session."""
    session = "not known"
    if summary.duration_s is not None:
        session = format_duration(summary.duration_s)
        session += "" if summary.ended_at else " up to the last record"
    if summary.time_s is None or summary.startup_s is None:
        return f"no task finished (session {session})"
    time, startup = (format_duration(value) for value in (summary.time_s, summary.startup_s))
    return f"{time} (start-up {startup}, session {session})"


#: Title of a table, its display, and what is said without any measurement.
_TABLES = (
    ("Duration", "duration_s", "not measured"),
    ("Time in the queue", "queued_s", "none"),
    ("Peak memory", "peak_memory", "not measured"),
)


def _tables(summary: Summary) -> Iterator[list[str]]:
    rows = task_rows(summary)
    more = len(rows) - _SHOWN_NAMES
    for title, display, nothing in _TABLES if rows else ():
        table = TASKS.table(rows[:_SHOWN_NAMES], display)
        if len(table.columns) == 1:
            yield [f"{title}: {nothing}"]
            continue
        lines = [f"{title}:", *table.lines(WIDTH)]
        if display == "duration_s" and more > 0:
            lines.append(f"  and {more} more task names (see the JSON report)")
        yield lines


def _remembered(summary: Summary) -> Iterator[str]:
    """Yield lines about cache hits and misses, with the reasons of the misses."""
    totals = summary.remembered
    if not totals:
        return
    yield f"Cached results: {cache_in_words(totals)}"
    cached = sorted((-row.task.counts.cached, name) for name, row in summary.task_names.items())
    hits = [f"{one_line(name)} {-count}" for count, name in cached[:_SHOWN_NAMES] if count]
    if hits:
        yield _cut(f"  hits: {', '.join(hits)}")
    for each in totals.reasons[:_SHOWN]:
        closest = f" (nearest: {each.nearest[:12]})" if each.nearest else ""
        yield _cut(f"  ran: {each.count} x {each.task}: {each.reason}{closest}")
    if len(totals.reasons) > _SHOWN:
        yield f"  and {len(totals.reasons) - _SHOWN} more reasons (see the JSON report)"


def _workers(summary: Summary) -> Iterator[str]:
    yield "Workers:"
    table = workers_of_run(summary, "workers")
    yield from table.lines(WIDTH) if table.rows else ["  none"]
    yield from map(_cut, lost_in_words(summary))
    scaling = summary.scaling
    yield f"Scaling events: {scaling.scale_up} scale-up, {scaling.scale_down} scale-down"
    # Changes by the plan are those at the start.
    made = [row for row in summary.scaling_changes if row.get("source") not in (None, "plan")]
    decisions = decisions_of_run(made, epoch(summary.started_at) or 0.0)
    if decisions.rows:
        yield from decisions.last(_SHOWN).lines(WIDTH)
    if (more := len(decisions.rows) - _SHOWN) > 0:
        yield f"  and {more} earlier changes (see the JSON report)"
    if summary.reruns:
        more = len(summary.reruns) - _SHOWN_RERUNS
        shown = ", ".join(short_key(one_line(key)) for key in summary.reruns[:_SHOWN_RERUNS])
        shown += f" and {more} more" if more > 0 else ""
        yield _cut(f"Tasks run more than once: {len(summary.reruns)} ({shown})")
        yield _cut(f"  {reasons_in_words(summary.rerun_reasons)}")


def said_cost(cost: CostSummary) -> str:
    """Return the cost of a run, and its part for time without tasks."""
    share = round(100 * cost.idle / cost.actual) if cost.actual else 0
    return f"{money(cost.actual)} {cost.currency}, {money(cost.idle)} idle ({share} %)"


def _cost(cost: CostSummary | None) -> Iterator[str]:
    """Yield lines about the actual cost, the planned cost and the parts of the managers."""
    if cost is None:
        return
    planned = "not planned" if cost.planned is None else f"planned {money(cost.planned)}"
    if cost.planned_interval is not None:
        low, high = cost.planned_interval
        planned += f", {money(low)} to {money(high)}"
    budget = "" if cost.budget is None else f"; budget {money(cost.budget)}"
    yield f"Cost: {said_cost(cost)}; {planned}{budget}"
    parts = dict(cost.by_manager) if len(cost.by_manager) > 1 else {}
    parts |= {"scheduler": cost.scheduler} if cost.scheduler else {}
    if parts:
        yield _cut("  " + ", ".join(f"{one_line(m)} {money(paid)}" for m, paid in parts.items()))


def _failures(summary: Summary) -> Iterator[str]:
    if not summary.failures:
        return
    count = sum(cause.count for cause in summary.failures)
    yield f"Failures: {count}"
    for cause in summary.failures[:_SHOWN]:
        example = cause.failures[0]
        message = _first_line(example.message)
        yield _cut(f"  {one_line(cause.failure_class)} ({cause.count}): {message}")
        if cause.frame:
            yield _cut(f"    at {one_line(cause.frame)}")
        if example.details.arguments:
            yield _cut(f"    with {one_line(example.details.arguments)}")
    if (more := len(summary.failures) - _SHOWN) > 0:
        yield f"  and {counted(more, 'more cause')}"
    if summary.tasks.get("failed", 0) > count:
        yield "  Further tasks failed only because they need the result of one of these."
    yield "  (scalable report --failed lists them)"


def _places(summary: Summary) -> Iterator[str]:
    if summary.artifacts:
        yield "Results:"
    for artifact in summary.artifacts:
        where = artifact.get("path") or artifact.get("uri") or "unknown location"
        size = number(artifact.get("bytes"))
        shown = "" if size is None else f" ({format_bytes(size)})"
        name = fitted(str(artifact.get("name") or "unnamed"), WIDTH // 2)
        yield f"  {name}: {one_line(str(where))}{shown}"
    if summary.malformed_lines:
        yield f"Unreadable lines of the record: {summary.malformed_lines}"
    yield f"Record: {one_line(summary.path)}"


def _cut(text: str, width: int = WIDTH) -> str:
    """Return a line of at most ``width`` cells that keeps its indentation, and its label's."""
    shown = _LABEL.match(text)
    label = "" if shown is None else shown[0]
    return label + fitted(text[len(label) :], width - len(label))


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0])


# Failures by cause --------------------------------------------------------------------------------

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
        return f"Run {one_line(run_id)}: no failures\n"
    counts = f"{counted(total, 'failure')}, {counted(len(found), 'cause')}"
    lines = [f"Run {one_line(run_id)}: {counts}"]
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
            "causes": [cause.to_dict() for cause in found],
        },
    }


def _run_id(record: RunRecord) -> str:
    return str(record.run.get("run_id") or record.path.name)


def _cause(cause: FailureCause, *, every: bool) -> Iterator[str]:
    where = f" at {cause.frame}" if cause.frame else ""
    yield _cut(f"{cause.count} x {cause.failure_class}{where}", 4 * WIDTH)
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
    call = failed.task_id or ""
    if failed.position is not None:
        call += f", number {failed.position} of its bundle"
    facts = {
        "message": failed.message,
        "task": call,
        "arguments": details.arguments,
        "worker": details.worker,
        "tries": str(details.tries) if details.tries > 1 else None,
    }
    yield from (_fact(name, value) for name, value in facts.items() if value)
    if not in_full:
        return
    for title, text in titled(BLOCKS, {**vars(details), "traceback": failed.traceback}):
        yield f"  {title.lower()}:"
        # Not splitlines(): it splits at characters that a terminal does not.
        for line in text.rstrip("\n").split("\n")[-_LINES:]:
            yield _cut(f"    {line}", 2 * WIDTH)


def _fact(name: str, value: str) -> str:
    return _cut(f"  {name}: {one_line(value)}", 4 * WIDTH)
