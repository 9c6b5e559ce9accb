"""Progress of clusters' tasks, as lines for a terminal or as one line for a log."""

from __future__ import annotations

from collections.abc import Sequence

from scalable.harmless import one_line
from scalable.model.overview import Overview, TaskCounts, TaskOverview
from scalable.units import counted, format_duration
from scalable.views.cluster_text import cache_in_words, end_in_words, progress_share, summary
from scalable.views.columns import parts_of, pool_reasons, tables_of
from scalable.views.tables import counts_in_words, fitted

#: Maximum number of lines of a live display, and of lines with pools' reasons in it.
MOST_LINES, _REASONS = 24, 2
#: Maximum number of task names, and of pools, in one line, and of characters of a name there.
LINE_NAMES, LINE_POOLS, _LINE_NAME = 5, 4, 40

#: A line of a live display, and its style: ``title``, ``header``, ``soft``, ``bad`` or nothing.
StyledLine = tuple[str, str]


def live_lines(
    overviews: Sequence[Overview], width: int, height: int, elapsed_s: float | None = None
) -> list[StyledLine]:
    """Return lines that show clusters on a terminal, the most important task names first."""
    room = max(1, min(height - 2, MOST_LINES))
    lines: list[StyledLine] = []
    for number, overview in enumerate(overviews):
        share = (room - len(lines)) // (len(overviews) - number)
        lines += _lines_of(overview, max(1, share), width, elapsed_s)
    return lines[:room]


def _lines_of(
    overview: Overview, room: int, width: int, elapsed_s: float | None
) -> list[StyledLine]:
    name, progress, *others = summary(overview, "progress")
    title = name if elapsed_s is None else f"{name} - {format_duration(elapsed_s)}"
    told = [(title, "title"), (progress, "title"), *((line, "soft") for line in others)]
    told += [(reason, "bad") for reason in pool_reasons(overview.pools)[:_REASONS]]
    lines: list[StyledLine] = [(fitted(text, width), style) for text, style in told]
    table = tables_of(overview, "progress")["tasks"]
    left = room - len(lines) - 1  # below the titles of the columns
    if table.rows and left > 0:
        fits = len(table.rows) <= left
        shown = len(table.rows) if fits else max(0, left - 1)
        header, *rows = table.first(shown).lines(width)
        lines.append((header, "header"))
        lines += [(row, "") for row in rows]
        if not fits:
            lines.append(("  " + fitted(_rest(overview.tasks[shown:]), width - 2), "soft"))
    return lines[:room]


def progress_line(overviews: Sequence[Overview]) -> str:
    """Return one line with the workers, task counts and predicted finish of each cluster."""
    told = []
    for overview in overviews:
        name = one_line(overview.cluster.get("name") or "cluster")
        told.append((f"{name}: " if len(overviews) > 1 else "") + _line_of(overview))
    return " || ".join(told)


def _line_of(overview: Overview) -> str:
    pools = [
        f"{fitted(tag, _LINE_NAME)}: {pool.status.running}/{pool.status.wanted} workers"
        for tag, pool in overview.pools.items()
        if tag
    ]
    if len(pools) > LINE_POOLS:
        pools[LINE_POOLS:] = [f"{len(pools) - LINE_POOLS} more pools"]
    tasks = [
        f"{fitted(task.name, _LINE_NAME)}: {counts_in_words(parts_of(task.counts))}"
        for task in overview.tasks[:LINE_NAMES]
    ]
    if len(overview.tasks) > LINE_NAMES:
        tasks.append(_rest(overview.tasks[LINE_NAMES:]))
    if overview.remembered:
        tasks.append(f"cached results: {cache_in_words(overview.remembered)}")
    counts = overview.counts
    progress = [progress_share(counts)] if counts.total else []
    if overview.end.at and counts.unfinished:
        progress.append(f"end {end_in_words(overview)}")
    return " | ".join([*progress, *pools, *tasks])


def _rest(tasks: Sequence[TaskOverview]) -> str:
    names = sum(task.names for task in tasks)
    counts = sum((task.counts for task in tasks), TaskCounts())
    return f"{counted(names, 'more name')}: {counts_in_words(parts_of(counts))}"
