"""A cluster as facts, as plain text and as charts of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from scalable.harmless import one_line
from scalable.model.cache_outcomes import CacheTotals
from scalable.model.costs import CURRENCY
from scalable.model.overview import Events, Overview, PoolOverview, TaskCounts, TaskOverview
from scalable.units import counted, format_duration
from scalable.views.columns import (
    LIVE,
    UNTAGGED_NAME,
    parts_of,
    pool_reasons,
    spent,
    tables_of,
)
from scalable.views.tables import (
    WIDTH,
    Column,
    Listing,
    Table,
    clock,
    counts_in_words,
    fitted,
    money,
)

# A cluster as facts -------------------------------------------------------------------------------


def progress_in_words(counts: TaskCounts) -> tuple[str, str]:
    """Return finished and all tasks, and their share, such as ``57 of 192 tasks`` and ``30 %``.
    A share below 100 % is not rounded up to it.
    """
    total, finished = counts.total, counts.total - counts.unfinished
    if not total:
        return "no tasks", ""
    return f"{finished} of {counted(total, 'task')}", f"{100 * finished // total} %"


def progress_share(counts: TaskCounts) -> str:
    """Return the progress in one string, such as ``57 of 192 tasks (30 %)``."""
    words, percent = progress_in_words(counts)
    return f"{words} ({percent})" if percent else words


def end_in_words(overview: Overview) -> str:
    """Return the predicted finish with its interval, or why there is none. "" without work."""
    end = overview.end
    if not overview.counts.unfinished:
        return ""
    if end.at is None or end.low is None or end.high is None:
        return f"not known: {fitted(end.reason, 100)}"
    left = format_duration(max(0.0, end.at - overview.at))
    at, low, high = (clock(each, overview.at) for each in (end.at, end.low, end.high))
    return f"in {left}, at {at} ({low} to {high})"


def costs_in_words(cost: Mapping[str, Any]) -> list[str]:
    """Return the costs so far and their rate, what they leave out, and the budget."""
    so_far, idle, rate = (money(cost[key]) for key in ("cost", "idle", "per_hour"))
    words = [f"{so_far} {CURRENCY} so far, {rate} an hour; {idle} for time without tasks"]
    words += [
        f"without workers of manager {manager}: their price is not known"
        for manager in cost.get("unpriced", ())
    ]
    budget = cost.get("budget")
    if budget:
        share = int(100 * cost["cost"] / budget)
        words.append(f"budget {money(budget)} {CURRENCY}, {share} % spent")
        if cost.get("words"):
            words.append(f"{cost['words']}; {cost['way_out']}")
    return words


def stop_in_words(at_latest: float | None, idle_at: float | None, now: float) -> str:
    """Return when a cluster stops by itself, such as ``in 9 m unless it gets work``, or ""."""
    ends = [] if at_latest is None else [(at_latest, "at the latest")]
    if idle_at is not None and (at_latest is None or idle_at < at_latest):
        ends.insert(0, (idle_at, "unless it gets work"))
    return ", ".join(f"in {format_duration(max(0.0, at - now))} {why}" for at, why in ends)


def _stop_in_words(overview: Overview) -> str:
    at_latest, idle_at = map(overview.cluster.get, ("ends_at", "idle_ends_at"))
    # Work defers the stop of an idle cluster.
    return stop_in_words(at_latest, None if overview.counts.unfinished else idle_at, overview.at)


def reasons_in_words(counts: Mapping[str, int]) -> str:
    """Return reasons with their counts, such as ``2 x worker lost, 1 x failed, retried``."""
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{count} x {one_line(reason)}" for reason, count in ordered)


def _failures_in_words(overview: Overview) -> str:
    """Return the failures by class, and the failed tasks that they do not count."""
    words = reasons_in_words(overview.failures)
    others = overview.counts.failed - sum(overview.failures.values())
    if others <= 0:
        return words
    because = f"{counted(others, 'task')} failed because an input failed"
    return f"{words}, {because}" if words else because


def _bound(name: str, bound: str) -> Column:
    series = f'scalable_predicted_end_timestamp_seconds{{bound="{bound}"}}'
    return Column(f"end_{name}", name, attrgetter(f"end.{name}"), "time", (), series, _END)


_END = "Predicted finish of all current tasks, with an 80 % interval, in seconds since 1970."
_MONEY = CURRENCY.lower()
#: Facts about a whole cluster. Its only row is the overview.
CLUSTER = Listing(
    (
        Column("progress", "progress", lambda overview: parts_of(overview.counts), "progress",
               text=lambda overview: progress_share(overview.counts)),
        Column("end", "end", end_in_words, optional=True),
        _bound("at", "expected"),
        _bound("low", "low"),
        _bound("high", "high"),
        spent("cost", "cost", "Cost so far.", f"scalable_cost_{_MONEY}_total", displays=LIVE,
              text=lambda overview: "; ".join(costs_in_words(overview.cost))),
        spent("idle", "idle", "Part of the cost for time without tasks.",
              f"scalable_idle_cost_{_MONEY}_total", displays=()),
        spent("per_hour", "per_hour", "Cost of one hour with the current machines.",
              f"scalable_cost_{_MONEY}_per_hour", displays=()),
        spent("budget", "budget", "The budget.", f"scalable_budget_{_MONEY}", displays=()),
        Column("tasks", "tasks", lambda overview: counts_in_words(vars(overview.counts))),
        Column("workers", "workers", attrgetter("workers"), "count",
               metric="scalable_workers", help="Connected workers."),
        Column("clients", "clients", attrgetter("clients"), "count",
               metric="scalable_clients", help="Connected clients."),
        Column("stops", "stops", _stop_in_words, optional=True,
               help="When the cluster stops by itself."),
        Column("again", "ran again", lambda overview: reasons_in_words(overview.reruns),
               optional=True),
        Column("cached", "cached results", lambda overview: cache_in_detail(overview.remembered),
               optional=True),
        Column("failures", "failures", _failures_in_words,
               displays=("notebook", "page"), optional=True),
    ),
    key=lambda overview: str(overview.cluster.get("name") or ""),
    displays=LIVE,
)  # fmt: skip


def facts(overview: Overview, display: str) -> dict[str, tuple[str, str]]:
    """Return the heading and text of each fact about a cluster by name, progress and end first."""
    table = CLUSTER.table([overview], display, overview.at)
    told = dict(zip((column.name for column in table.columns), table.rows[0].cells, strict=True))
    return {column.name: (column.heading, told[column.name]) for column in table.columns}


def title(overview: Overview) -> str:
    """Return the name, place and state of a cluster."""
    cluster = overview.cluster
    name = one_line(cluster.get("name") or "cluster of this process")
    places = dict.fromkeys(one_line(cluster[k]) for k in ("provider", "target") if cluster.get(k))
    because = f": {one_line(cluster['reason'])}" if cluster.get("reason") else ""
    on = f" on {'/'.join(places)}" if places else ""
    return f"{name}{on} - {one_line(cluster.get('state') or '?')}{because}"


def summary(overview: Overview, display: str = "once") -> list[str]:
    """Return lines about the whole cluster: name and state, progress and predicted finish, cost,
    tasks and workers, and the other facts.
    """
    told = facts(overview, display)
    (_, progress), (_, end) = told.pop("progress"), told.pop("end", ("", ""))
    lines = [title(overview), f"{progress}; end {end}" if end else progress]
    workers = ", ".join(
        counted(getattr(overview, name), name[:-1])
        for name in ("workers", "clients")
        if told.pop(name, None)
    )
    for name, (heading, text) in told.items():
        more = f"; {workers}" if name == "tasks" else ""
        lines.append(f"{heading.capitalize()}: {text}{more}")
    return lines


# Cached results in words: hits, misses and their reasons, and saved time --------------------------


#: Maximum number of reasons in a line.
LINE_REASONS = 2


def cache_in_words(totals: CacheTotals) -> str:
    """Return cache hits, misses and the saved time, such as ``120 hits (2 h saved), 3 ran``."""
    hits = counted(totals.found, "hit")
    if totals.found:
        hits += f" ({format_duration(totals.saved_s)} saved)"
    return f"{hits}, {totals.missed} ran" if totals.missed else hits


def cache_in_detail(totals: CacheTotals) -> str:
    """Return cache hits and misses with the most frequent reasons of misses, if there are any."""
    if not totals:
        return ""
    told = [f"{each.count} x {one_line(each.reason)}" for each in totals.reasons[:LINE_REASONS]]
    others = len(totals.reasons) - len(told)
    if others:
        told.append(f"{counted(others, 'more reason')}")
    because = f": {'; '.join(told)}" if told else ""
    return f"{cache_in_words(totals)}{because}"


# A cluster as plain text: summary, pools, tasks, managers, failures and decisions -----------------


#: Maximum number of rows with task names, and of rows with decisions or failures.
SHOWN_TASKS, SHOWN_EVENTS = 40, 10


def page(overview: Overview, events: Events, width: int = WIDTH) -> list[str]:
    """Return a cluster as lines. Its tables are at most ``width`` cells wide."""
    tables = tables_of(overview, "once", events)
    tasks = tables["tasks"]
    lines = [*summary(overview), *_part(tables["pools"], width)]
    lines += [f"    {reason}" for reason in pool_reasons(overview.pools)]
    lines += _part(tasks.first(SHOWN_TASKS), width)
    if (more := len(tasks.rows) - SHOWN_TASKS) > 0:
        lines.append(f"  and {counted(more, 'row')} of further task names")
    lines += _part(tables["managers"], width)
    for name in ("failures", "decisions"):
        lines += _part(tables[name].first(SHOWN_EVENTS), width, name.capitalize())
    return lines


def _part(table: Table, width: int, heading: str = "") -> list[str]:
    if not table.rows:
        return []
    return ["", *([f"{heading}:"] if heading else []), *table.lines(width)]


# Progress, as lines of a live display or as one line for a log ------------------------------------

#: Maximum number of lines of a live display, and of lines with pools' reasons in it.
MOST_LINES, _REASONS = 24, 2
#: Maximum number of task names, and of pools, in one line, and of characters of a name there.
LINE_NAMES, LINE_POOLS, _LINE_NAME = 5, 4, 40

#: A line of a live display, and its style: ``title``, ``header``, ``soft``, ``bad`` or nothing.
StyledLine = tuple[str, str]


def live_lines(
    overviews: Sequence[Overview],
    width: int = WIDTH,
    height: int = MOST_LINES,
    elapsed_s: float | None = None,
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


# Failures and utilisation -------------------------------------------------------------------------

#: Characters of a chart by height, the lowest first.
_HEIGHTS = " ▁▂▃▄▅▆▇█"
#: Indices of a pool's values in a sample.
_USED, _SLOTS, _QUEUED = 2, 3, 4


def sample_of(pools: Mapping[str, PoolOverview]) -> dict[str, list[int]]:
    """Return the values of pools at one moment, as in the samples of :class:`Events`."""
    return {
        tag: [p.status.wanted, p.status.running, p.used_slots, p.slots, p.queued, p.blocked]
        for tag, p in pools.items()
    }


#: Number of lines that :func:`use_lines` returns for a pool.
LINES_OF_POOL = 5
#: Titles and keys of a failure's details: those on one line, and those with lines of their own.
FACTS = (
    ("Task", "task_name"),
    ("Key", "task_id"),
    ("Arguments", "arguments"),
    ("Where", "frame"),
    ("Pool", "tag"),
    ("Worker", "worker"),
    ("Attempts", "tries"),
)
BLOCKS = (
    ("Standard error of a child process", "stderr"),
    ("Output of a child process", "stdout"),
    ("Last output of the worker", "output"),
    ("Traceback", "traceback"),
)


def titled(titles: Iterable[tuple[str, str]], details: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the details that are known as (title, text). Callers must make them harmless."""
    return [(title, str(details[key])) for title, key in titles if details.get(key)]


def failure_in_words(failure: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    """Return a failure's parts as (title, text). Callers must make them harmless."""
    return [
        ("Error", f"{failure.get('failure_class', '?')}: {failure.get('message', '')}"),
        ("Time", clock(failure.get("timestamp"), now)),
        *titled((*FACTS, *BLOCKS), failure.get("details") or {}),
    ]


def use_lines(samples: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return each pool's queue and utilisation over time as charts of ``width`` characters."""
    lines = []
    for tag in dict.fromkeys(tag for sample in samples for tag in sample["pools"]):
        points = [sample["pools"][tag] for sample in samples if tag in sample["pools"]]
        slots = max(1, *(point[_SLOTS] for point in points))
        longest = max(point[_QUEUED] for point in points)
        last, name = points[-1], one_line(tag or UNTAGGED_NAME)
        queued = counted(last[_QUEUED], "task")
        lines += [
            f"{name}: {last[_USED]} of {last[_SLOTS]} slots used, {queued} queued",
            f"  used slots (of {slots})",
            "  " + drawn([point[_USED] for point in points], slots, width - 2),
            f"  queued tasks (peak: {longest})",
            "  " + drawn([point[_QUEUED] for point in points], max(1, longest), width - 2),
        ]
    return lines


def drawn(values: Sequence[float], highest: float, width: int) -> str:
    """Return values over time as one line of characters with different heights.
    Each character shows the largest of its values. A value above 0 has a height above 0.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    parts = [
        values[len(values) * place // count : len(values) * (place + 1) // count]
        for place in range(count)
    ]
    top = len(_HEIGHTS) - 1
    heights = [min(top, -(-max(part) * top // max(highest, 1e-9))) for part in parts]
    return "".join(_HEIGHTS[int(height)] for height in heights)
