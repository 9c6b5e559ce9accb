"""Comparison of two runs as a table. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from scalable.runs import RecordedTasks, RunRecord, Summary, summary_of
from scalable.runs.report.environment import environment_of
from scalable.runs.report.spans import last_moment, most_at_once, presences
from scalable.runs.report.table import on_one_line, shorten, table
from scalable.units import format_amount, format_duration

#: Maximum number of rows of the table, and of characters of a text in it.
_ROWS, _LONGEST = 100, 24
_MISSING = "-"

Pair = tuple[Any, Any]


def compare_runs(first: RunRecord, second: RunRecord) -> dict[str, Pair]:
    """Map names to pairs (first run, second run) of values. None means unknown."""
    one, other = _values(first), _values(second)
    names = dict.fromkeys([*one, *other])
    rows = {name: (one.get(name), other.get(name)) for name in names}
    same = ("manifest", "version of ")
    return {n: p for n, p in rows.items() if not (n.startswith(same) and p[0] == p[1])}


def _values(record: RunRecord) -> dict[str, Any]:
    calls = RecordedTasks(record.tasks)
    summary: Summary = summary_of(record, calls)
    present: dict[str, list[tuple[float, float]]] = {}
    until = last_moment(record, calls.last_moment or 0.0)
    for worker in presences(record.workers, until):
        present.setdefault(worker.tag, []).append((worker.begin, worker.end))
    there = environment_of(record)
    values: dict[str, Any] = {
        "run": summary.run_id,
        "target": record.run.get("target"),
        "status": summary.status,
        "duration_s": summary.duration_s,
        "calls": sum(summary.tasks.values()),
        "failed": summary.tasks.get("failed", 0),
        "manifest": there.manifest_lock,
    }
    if summary.cost is not None:
        values[f"cost in {summary.cost.currency}"] = summary.cost.actual
    values |= {f"workers of {tag}": most_at_once(times) for tag, times in present.items()}
    for name, task in summary.task_names.items():
        values[f"tasks of {name}"] = task.count
        values[f"median_s of {name}"] = None if task.duration_s is None else task.duration_s.q50
    return values | {f"version of {name}": text for name, text in there.versions.items()}


def render_two_runs(rows: Mapping[str, Pair]) -> str:
    """Return a comparison as plain text with a final newline."""
    one, other = (on_one_line(str(run)) for run in rows["run"])
    shown = [_row(name, pair) for name, pair in rows.items() if name != "run"]
    lines = [f"First:  {one}", f"Second: {other}", ""]
    lines += table(("", "first", "second", "ratio"), shown[:_ROWS])
    if len(shown) > _ROWS:
        lines.append(f"  and {len(shown) - _ROWS} more rows (see the JSON form)")
    return "\n".join(lines) + "\n"


def _row(name: str, pair: Pair) -> tuple[str, ...]:
    show: Any = str
    for seconds in ("duration", "median"):
        if name.startswith(f"{seconds}_s"):
            name, show = f"{seconds}{name.removeprefix(f'{seconds}_s')}", format_duration
    if name.startswith("cost in "):
        show = partial(format_amount, unit=name.removeprefix("cost in "))
    texts = [
        _MISSING if value is None else shorten(on_one_line(show(value)), _LONGEST) for value in pair
    ]
    one, other = pair
    numbers = all(isinstance(value, int | float) for value in pair)
    return (name, *texts, f"{other / one:.2f}" if numbers and one else _MISSING)
