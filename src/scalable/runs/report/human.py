"""Report of a run as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from scalable.runs import CostSummary, PoolSummary, Quantiles, Summary, TaskNameSummary
from scalable.runs.report.table import WIDTH, on_one_line, shorten, table
from scalable.units import format_amount, format_bytes, format_duration
from scalable.views.overview_tables import STATE_WORDS, cache_in_words, reason_rows

_NOT_CLOSED = {
    "interrupted": "its process stopped without closing the run; the record is incomplete",
    "running": "the record is incomplete",
}
_DURATION_HEADER = ("task", "count", "failed", "median", "80%", "95%", "max", "total")
_QUANTILES_HEADER = ("task", "median", "95%", "max")
_SHOWN_NAMES = 30
_SHOWN_RERUNS = 3
_SHOWN_CHANGES = 10
_SHOWN_REASONS = 10
_MISSING = "-"


def render_human(summary: Summary) -> str:
    """Return the report as plain text without colour. Only paths may exceed 100 columns."""
    blocks = [
        list(_head(summary)),
        *_tables(summary.task_names),
        list(_remembered(summary)),
        [*_workers(summary.workers), *_events(summary)],
        list(_cost(summary.cost)),
        list(_failures(summary)),
        list(_places(summary)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(summary: Summary) -> Iterator[str]:
    yield f"Run {on_one_line(summary.run_id)}"
    yield f"Status:   {said_status(summary)}"
    if summary.error:
        yield shorten(f"Error:    {_first_line(summary.error)}", WIDTH)
    provider = f" (provider {summary.provider})" if summary.provider else ""
    yield shorten(f"Project:  {on_one_line(summary.project)}", WIDTH)
    yield shorten(f"Target:   {on_one_line(summary.target + provider)}", WIDTH)
    yield f"Started:  {said_moment(summary.started_at)}"
    yield f"Duration: {said_duration(summary)}"
    words = {STATE_WORDS.get(state, state): count for state, count in summary.tasks.items()}
    states = ", ".join(f"{count} {on_one_line(state)}" for state, count in words.items())
    yield shorten(f"Tasks:    {states or 'none'}", WIDTH)


def said_status(summary: Summary) -> str:
    """Return the status of a run with remarks."""
    failed = summary.tasks.get("failed", 0)
    remarks = []
    if summary.status in _NOT_CLOSED:
        remarks.append(_NOT_CLOSED[summary.status])
    if summary.status == "completed" and failed:
        remarks.append(f"{failed} failed {'task' if failed == 1 else 'tasks'}")
    if summary.exit_code:
        remarks.append(f"exit code {summary.exit_code}")
    status = shorten(on_one_line(summary.status), WIDTH // 2)
    return status + (f" ({'; '.join(remarks)})" if remarks else "")


def said_moment(text: str | None) -> str:
    """Return a recorded time in a form such as ``2026-01-01 00:00:00 UTC``."""
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M:%S %Z}".rstrip()
    except ValueError:
        return "not known"


def said_duration(summary: Summary) -> str:
    """Return the formatted duration of a run."""
    if summary.duration_s is None:
        return "not known"
    shown = format_duration(summary.duration_s)
    return shown if summary.ended_at else f"{shown} up to the last record"


def _tables(task_names: Mapping[str, TaskNameSummary]) -> Iterator[list[str]]:
    if not task_names:
        return
    # The tasks with the largest total running time come first.
    names = sorted(task_names, key=lambda name: -_total(task_names[name]))
    shown = {name: task_names[name] for name in names[:_SHOWN_NAMES]}
    rows = [_duration_row(name, task) for name, task in shown.items()]
    more = len(names) - len(shown)
    yield [
        "Duration:",
        *table(_DURATION_HEADER, rows),
        *([f"  and {more} more task names (see the JSON report)"] if more else []),
    ]
    queued = [(name, *_times(task.queued_s)) for name, task in shown.items()]
    yield ["Time in the queue:", *table(_QUANTILES_HEADER, queued)]
    memory = [(name, *_sizes(task.peak_memory)) for name, task in shown.items()]
    measured = any(task.peak_memory for task in shown.values())
    yield (
        ["Peak memory:", *table(_QUANTILES_HEADER, memory)]
        if measured
        else ["Peak memory: not measured"]
    )


def _remembered(summary: Summary) -> Iterator[str]:
    """Yield lines about cache hits and misses, with the reasons of the misses."""
    totals = summary.remembered
    if not totals:
        return
    yield f"Cached results: {cache_in_words(totals)}"
    found = {name: task.found for name, task in summary.task_names.items() if task.found}
    if found:
        names = sorted(found, key=lambda name: -found[name])
        shown = ", ".join(f"{on_one_line(n)} {found[n]}" for n in names[:_SHOWN_NAMES])
        yield shorten(f"  hits: {shown}", WIDTH)
    for task, count, reason, nearest in islice(reason_rows(totals), _SHOWN_REASONS):
        closest = f" (nearest: {nearest})" if nearest else ""
        yield shorten(f"  ran: {count} x {task}: {reason}{closest}", WIDTH)
    if len(totals.reasons) > _SHOWN_REASONS:
        yield f"  and {len(totals.reasons) - _SHOWN_REASONS} more reasons (see the JSON report)"


def _total(task: TaskNameSummary) -> float:
    return task.duration_s.total if task.duration_s else 0.0


def _duration_row(name: str, task: TaskNameSummary) -> tuple[str, ...]:
    spread = task.duration_s
    values = (spread.q50, spread.q80, spread.q95, spread.max, spread.total) if spread else ()
    shown = tuple(format_duration(value) for value in values) or (_MISSING,) * 5
    return (name, str(task.count), str(task.failed), *shown)


def _times(spread: Quantiles | None) -> tuple[str, ...]:
    if spread is None:
        return (_MISSING,) * 3
    return tuple(format_duration(value) for value in (spread.q50, spread.q95, spread.max))


def _sizes(spread: Quantiles | None) -> tuple[str, ...]:
    if spread is None:
        return (_MISSING,) * 3
    return tuple(format_bytes(value) for value in (spread.q50, spread.q95, spread.max))


def _workers(pools: Mapping[str, PoolSummary]) -> Iterator[str]:
    yield "Workers:"
    if not pools:
        yield "  none"
    for tag, pool in pools.items():
        counts = f"{pool.started} started, {pool.removed} removed, {pool.final} final"
        yield f"  {shorten(on_one_line(tag), WIDTH - len(counts) - 4)}: {counts}"


def _events(summary: Summary) -> Iterator[str]:
    scaling = summary.scaling
    yield f"Scaling events: {scaling.scale_up} scale-up, {scaling.scale_down} scale-down"
    yield from _decisions(summary.scaling_changes)
    lost = {tag: pool.lost for tag, pool in summary.workers.items() if pool.lost}
    if lost:
        shown = ", ".join(f"{count} of {on_one_line(tag)}" for tag, count in lost.items())
        yield shorten(f"Lost workers: {shown}", WIDTH)
    for tag in lost:
        for reason, count in summary.workers[tag].lost_reasons.items():
            yield shorten(f"  {on_one_line(tag)}: {count} x {_first_line(reason)}", WIDTH)
    if summary.reruns:
        more = len(summary.reruns) - _SHOWN_RERUNS
        shown = ", ".join(on_one_line(task_id) for task_id in summary.reruns[:_SHOWN_RERUNS])
        shown += f" and {more} more" if more > 0 else ""
        yield shorten(f"Tasks run more than once: {len(summary.reruns)} ({shown})", WIDTH)
        for reason, count in summary.rerun_reasons.items():
            yield shorten(f"  {count} x {on_one_line(reason)}", WIDTH)


def _decisions(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line with the reason for each change of a pool, except changes by the plan."""
    made = [row for row in changes if row.get("tag") and row.get("source") not in (None, "plan")]
    if len(made) > _SHOWN_CHANGES:
        yield f"  ... {len(made) - _SHOWN_CHANGES} earlier changes (see the JSON report)"
    for row in made[-_SHOWN_CHANGES:]:
        counts = f"{row['tag']}: {row.get('from')} -> {row.get('to')}"
        why = f"{counts} ({row['source']}) {row.get('reason') or ''}"
        yield shorten(f"  {on_one_line(why)}".rstrip(), WIDTH)


def _cost(cost: CostSummary | None) -> Iterator[str]:
    """Yield lines about planned and actual cost, and the cost of idle time."""
    if cost is None:
        return
    amount = partial(format_amount, unit=cost.currency)
    planned = "not planned"
    if cost.planned is not None:
        planned = f"planned {amount(cost.planned)}"
        if cost.planned_interval is not None:
            low, high = cost.planned_interval
            planned += f" ({amount(low)} to {amount(high)})"
    budget = "" if cost.budget is None else f", budget {amount(cost.budget)}"
    yield f"Cost: {amount(cost.actual)} {cost.currency} ({planned}{budget})"
    share = round(100 * cost.idle / cost.actual) if cost.actual else 0
    yield f"  for time without tasks: {amount(cost.idle)} ({share} %)"
    yield from (
        shorten(f"  {on_one_line(tag)}: {amount(paid)}, without tasks {amount(idle)}", WIDTH)
        for tag, paid in cost.by_tag.items()
        for idle in (cost.idle_by_tag.get(tag, 0.0),)
    )
    if len(cost.by_manager) > 1:
        parts = ", ".join(f"{on_one_line(m)} {amount(paid)}" for m, paid in cost.by_manager.items())
        yield shorten(f"  by manager: {parts}", WIDTH)
    if cost.scheduler:
        yield f"  scheduler: {amount(cost.scheduler)}"


def _failures(summary: Summary) -> Iterator[str]:
    failures = summary.failures
    if not failures.count:
        return
    yield f"Failures: {failures.count}"
    for name, failure in failures.classes.items():
        message = _first_line(failure.message)
        yield shorten(f"  {on_one_line(name)} ({failure.count}): {message}", WIDTH)
        if failure.frame:
            yield shorten(f"    at {on_one_line(failure.frame)}", WIDTH)
        if failure.arguments:
            yield shorten(f"    with {on_one_line(failure.arguments)}", WIDTH)
    if summary.tasks.get("failed", 0) > failures.count:
        yield "  Further tasks failed only because they need the result of one of these."
    yield "  (scalable report --failed lists them)"


def _places(summary: Summary) -> Iterator[str]:
    if summary.artifacts:
        yield "Results:"
    for artifact in summary.artifacts:
        yield f"  {_artifact(artifact)}"
    if summary.malformed_lines:
        yield f"Unreadable lines of the record: {summary.malformed_lines}"
    yield f"Record: {on_one_line(summary.path)}"


def _artifact(artifact: Mapping[str, Any]) -> str:
    where = artifact.get("path") or artifact.get("uri") or "unknown location"
    size = artifact.get("bytes")
    shown = f" ({format_bytes(size)})" if isinstance(size, (int, float)) else ""
    name = shorten(on_one_line(str(artifact.get("name") or "unnamed")), WIDTH // 2)
    return f"{name}: {on_one_line(str(where))}{shown}"


def _first_line(text: str) -> str:
    return on_one_line(text.strip().partition("\n")[0])
