"""A cluster as plain text: summary, pools, tasks, managers, failures and decisions."""

from __future__ import annotations

from scalable.model.overview import Events, Overview
from scalable.units import counted
from scalable.views.cluster import (
    managers_table,
    pool_reasons,
    pools_table,
    summary,
    tasks_table,
)
from scalable.views.events import decisions_table, failures_table
from scalable.views.tables import Table

#: Maximum rows of task names, and of decisions and causes of failures.
SHOWN_TASKS, SHOWN_EVENTS = 40, 10


def page(overview: Overview, events: Events, width: int) -> list[str]:
    """Return a cluster as lines, whose tables have at most ``width`` cells."""
    now, tasks = overview.at, tasks_table(overview)
    lines = [*summary(overview), *_part(pools_table(overview), width)]
    lines += [f"    {reason}" for reason in pool_reasons(overview)]
    lines += _part(tasks.first(SHOWN_TASKS), width)
    if (more := len(tasks.rows) - SHOWN_TASKS) > 0:
        lines.append(f"  and {counted(more, 'row')} of further task names")
    lines += _part(managers_table(overview), width)
    lines += _part(failures_table(events.failures, now).first(SHOWN_EVENTS), width, "Failures")
    lines += _part(decisions_table(events.decisions, now).first(SHOWN_EVENTS), width, "Decisions")
    return lines


def _part(table: Table, width: int, title: str = "") -> list[str]:
    if not table.rows:
        return []
    return ["", *([f"{title}:"] if title else []), *table.lines(width)]
