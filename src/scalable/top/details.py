"""Details of a row: its cells in full, and more facts from the overview and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.showing.events import failure_in_words, failures_by_cause
from scalable.showing.tables import Row, Table
from scalable.top.watched import Watched
from scalable.units import format_duration

#: Maximum failures of a task in its details.
_SHOWN_FAILURES = 5
#: Maximum characters of a task name in an overview, where longer names are cut.
LONGEST = 200

Parts = list[tuple[str, str]]


def details_of(
    grid: str | None, row: Row, table: Table, watched: Watched
) -> tuple[str, Parts, str | None]:
    """Return title and parts of a row's details, and what can be explained about it, or None."""
    parts: Parts = [
        (column.title, cell) for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    at = 0.0 if watched.overview is None else watched.overview.at
    match grid:
        case "failures":
            _, last = failures_by_cause(watched.failures).get(row.key, (0, None))
            if last is None:
                return "failure", parts, None
            told = failure_in_words(last, at)
            call = (last.get("details") or {}).get("task_id")
            return "failure", [parts[0], *told], None if call is None else str(call)
        case "tasks":
            name = row.key.partition("\n")[2]
            running = [] if watched.overview is None else watched.overview.running
            lines = [
                f"{call.key} on {call.worker}, for {format_duration(call.since_s)}"
                for call in running
                if call.name == name and (call.tag or "") == row.pool
            ]
            parts += [("Calls that run longest", "\n".join(lines))] if lines else []
            failed = [f for f in watched.failures if _name_of(f)[:LONGEST] == name][
                -_SHOWN_FAILURES:
            ]
            for failure in reversed(failed):
                parts += [("", ""), *failure_in_words(failure, at)]
            return f"task {row.cells[0]}", parts, name
        case "pools":
            return f"pool {row.cells[0]}", parts, row.key or None
    return str(grid).removesuffix("s"), parts, None


def _name_of(failure: Mapping[str, Any]) -> str:
    return str((failure.get("details") or {}).get("task_name") or "")
