"""An overview's summary, pools, tasks and managers as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalable.model.cache_outcomes import CacheTotals, MissReason
from scalable.model.costs import CURRENCY
from scalable.model.overview import CALL_STATES, CallCounts, Events, Overview, PoolOverview
from scalable.units import counted, format_duration
from scalable.views.tables import Column, Table, clock, fitted, money, one_line, row

#: Name of the pool without a tag, in left-to-right script, so that numbers stay in their columns.
UNTAGGED_NAME = "(no tag)"
#: Parts of a bar, in the order in which they are drawn.
_BAR = (
    *(("done", "█"), ("found", "▓"), ("failed", "x")),
    *(("cancelled", "-"), ("running", "▒"), ("waiting", "░")),
)

POOL_COLUMNS = (
    Column("pool", width=24),
    *(
        Column(title, number=True)
        for title in ("desired", "running", "starting", "busy", "idle", "slots", "waiting", "lost")
    ),
    Column("count"),
    Column("cost", number=True),
)
TASK_COLUMNS = (
    Column("task", width=48),
    Column("pool", width=16),
    Column("progress"),
    *(Column(title, number=True) for title in ("running", "waiting", "done", "failed")),
    Column("mean", number=True),
    Column("queued", number=True),
)
#: Words for states of tasks that have another name in records.
STATE_WORDS = {"found": "cached"}
#: Position of the column of cache hits, which is shown if there are any.
_FOUND_PLACE = 7
MANAGER_COLUMNS = (
    Column("manager", width=24),
    Column("target", width=16),
    Column("provider"),
    Column("state"),
    Column("heard", number=True),
    Column("workers", width=24),
    Column("reason"),
)


def summary(overview: Overview) -> list[str]:
    """Return lines about the whole cluster: state, tasks, predicted finish and costs."""
    cluster, calls = overview.cluster, overview.calls
    name = one_line(cluster.get("name") or "cluster of this process")
    place = "/".join(one_line(cluster[key]) for key in ("provider", "target") if cluster.get(key))
    state = one_line(cluster.get("state") or "?")
    because = f": {one_line(cluster['reason'])}" if cluster.get("reason") else ""
    workers, clients = counted(overview.workers, "worker"), counted(overview.clients, "client")
    lines = [
        f"{name}{f' on {place}' if place else ''} - {state}{because}",
        f"{calls_in_words(calls)}; {workers}, {clients}",
        f"End: {end_in_words(overview)}",
    ]
    lasts = [
        (moment, words)
        for moment, words in (
            (cluster.get("ends_at"), "at the latest"),
            (cluster.get("idle_ends_at"), "without work"),
        )
        if moment is not None
    ]
    if lasts:
        moment, words = min(lasts)
        left = format_duration(max(0.0, moment - overview.at))
        lines.append(f"The cluster stops in {left} {words}")
    if overview.cost:
        lines.append(cost_in_words(overview.cost))
    if overview.reruns:
        lines.append(f"Ran again: {reasons_in_words(overview.reruns)}")
    if overview.remembered:
        lines.append(cache_line(overview.remembered))
    return lines


def reasons_in_words(counts: Mapping[str, int]) -> str:
    """Return reasons with their counts, such as ``2 x worker lost, 1 x failed, retried``."""
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{count} x {one_line(reason)}" for reason, count in ordered)


def calls_in_words(calls: CallCounts) -> str:
    """Return counts of tasks, such as ``12 running, 30 waiting, 5 done, 1 failed``."""
    told = [
        f"{getattr(calls, state)} {STATE_WORDS.get(state, state)}"
        for state in CALL_STATES
        if getattr(calls, state) or state in ("running", "waiting", "done")
    ]
    return ", ".join(told)


def end_in_words(overview: Overview) -> str:
    """Return the predicted finish with its interval, or why there is none."""
    end, calls = overview.end, overview.calls
    if not calls.running + calls.waiting:
        return "nothing to do"
    if end.at is None or end.low is None or end.high is None:
        return f"not known: {fitted(end.reason, 100)}"
    left = format_duration(max(0.0, end.at - overview.at))
    at, low, high = (clock(each, overview.at) for each in (end.at, end.low, end.high))
    return f"in {left}, at {at} ({low} to {high})"


def cost_in_words(cost: Mapping[str, Any]) -> str:
    """Return the costs so far, their rate and the budget."""
    words = f"Cost: {money(cost['cost'])} {CURRENCY} so far, {money(cost['per_hour'])} an hour"
    budget = cost.get("budget")
    if budget:
        share = int(100 * cost["cost"] / budget)
        words += f"; budget {money(budget)} {CURRENCY}, {share} % spent"
    return words


def bar(counts: CallCounts, width: int) -> str:
    """Return the states of tasks as a bar of ``width`` characters, empty without tasks."""
    total = counts.total
    if not total:
        return ""
    shares = {state: getattr(counts, state) * width / total for state, _ in _BAR}
    cells = {state: int(share) or int(share > 0) for state, share in shares.items()}
    while (extra := sum(cells.values()) - width) != 0:
        step = -1 if extra > 0 else 1
        # The state whose width is furthest from its share.
        place = max(
            (s for s in cells if cells[s] > 1 or step > 0),
            key=lambda state: step * (shares[state] - cells[state]),
            default=None,
        )
        if place is None:
            break
        cells[place] += step
    return "".join(char * cells[state] for state, char in _BAR)[:width]


def pools_table(overview: Overview) -> Table:
    """Return a cluster's pools, with costs if any are known."""
    priced = any(pool.cost for pool in overview.pools.values())
    columns = POOL_COLUMNS if priced else POOL_COLUMNS[:-1]
    rows = []
    for tag, pool in overview.pools.items():
        status = pool.status
        count = _count_in_words(pool)
        cost = pool.cost["cost"] if pool.cost else None
        values: tuple[Any, ...] = (
            *(tag, status.wanted, status.running, status.launching, pool.busy, pool.idle),
            *(pool.used_slots, pool.waiting, status.lost, count, cost),
        )
        texts = list(values)
        texts[0] = tag or UNTAGGED_NAME
        texts[6] = f"{pool.used_slots}/{pool.slots}"
        texts[10] = "-" if cost is None else money(cost)
        shown = len(columns)
        rows.append(row(tag, values[:shown], texts[:shown], pool=tag))
    return Table(columns, tuple(rows), "no pools")


def _count_in_words(pool: PoolOverview) -> str:
    if pool.adaptive is None:
        return "fixed"
    least, most = pool.adaptive
    return f"{least} to {'any' if most is None else most}"


def pool_reasons(overview: Overview) -> list[str]:
    """Return a line with the reason for each pool that waits, failed or lost workers."""
    lines = []
    for tag, pool in overview.pools.items():
        status, name = pool.status, one_line(tag or UNTAGGED_NAME)
        if why := status.reason or status.waiting:
            lines.append(f"{name}: {one_line(why)}")
        if status.failed:
            lines.append(f"{name}: {counted(status.failed, 'worker')} failed")
        if status.lost:
            last = f"; the last: {one_line(status.last_loss)}" if status.last_loss else ""
            lines.append(f"{name}: {counted(status.lost, 'worker')} lost{last}")
    return lines


def tasks_table(overview: Overview, *, bar_width: int = 12) -> Table:
    """Return the tasks of a cluster, grouped by name."""
    rows = []
    columns, place = list(TASK_COLUMNS), slice(_FOUND_PLACE, _FOUND_PLACE)
    has_found = any(task.counts.found for task in overview.tasks)
    if has_found:
        columns[place] = [Column("cached", number=True)]
    for task in overview.tasks:
        counts = task.counts
        name = task.name
        if task.names > 1 and not name.startswith("("):
            name = f"{name} ({task.names} names)"
        share = (counts.total - counts.running - counts.waiting) / max(1, counts.total)
        values: list[Any] = [
            *(task.name, task.tag or "", share, counts.running, counts.waiting, counts.done),
            *(counts.failed, task.mean_s, task.mean_queued_s),
        ]
        texts: list[Any] = [
            *(name, task.tag or UNTAGGED_NAME, bar(counts, bar_width)),
            *(counts.running, counts.waiting, counts.done, counts.failed),
            "-" if task.mean_s is None else format_duration(task.mean_s),
            "-" if task.mean_queued_s is None else format_duration(task.mean_queued_s),
        ]
        if has_found:
            values[place] = texts[place] = [counts.found]
        key = f"{task.tag or ''}\n{task.name}"
        rows.append(row(key, values, texts, pool=task.tag or ""))
    return Table(tuple(columns), tuple(rows), "no tasks yet")


def managers_table(overview: Overview) -> Table:
    """Return the managers of a cluster, with the reasons why their workers do not start."""
    rows = []
    for manager in overview.managers:
        pools = manager.get("pools") or {}
        workers = ", ".join(
            f"{tag or UNTAGGED_NAME}: {pool.get('running', 0)}/{pool.get('wanted', 0)}"
            for tag, pool in pools.items()
        )
        reasons = [f"{tag}: {pool['reason']}" for tag, pool in pools.items() if pool.get("reason")]
        silent_s = manager.get("silent_s")
        texts = (
            *(manager.get("id", "?"), manager.get("target") or "-"),
            *(manager.get("provider") or "-", manager.get("state", "?")),
            "-" if silent_s is None else f"{format_duration(silent_s)} ago",
            *(workers or "-", "; ".join(reasons) or "-"),
        )
        values = (*texts[:4], silent_s, *texts[5:])
        rows.append(row(str(manager.get("id")), values, texts))
    return Table(MANAGER_COLUMNS, tuple(rows), "no managers")


# Cached results in words: hits, misses and their reasons, and saved time --------------------------


#: Maximum number of reasons in a line.
LINE_REASONS = 2


def cache_in_words(totals: CacheTotals) -> str:
    """Return cache hits, misses and the saved time, such as ``120 hits (2 h saved), 3 ran``."""
    hits = counted(totals.found, "hit")
    if totals.found:
        waited = f", {totals.waited} computed by other processes" if totals.waited else ""
        hits += f" ({format_duration(totals.saved_s)} saved{waited})"
    return f"{hits}, {totals.missed} ran" if totals.missed else hits


def cache_line(totals: CacheTotals) -> str:
    """Return one line about cached results, with the most frequent reasons of misses."""
    told = [f"{each.count} x {reason_in_words(each)}" for each in totals.reasons[:LINE_REASONS]]
    others = len(totals.reasons) - len(told)
    if others:
        told.append(f"{counted(others, 'more reason')}")
    because = f": {'; '.join(told)}" if told else ""
    return f"Cached results: {cache_in_words(totals)}{because}"


def reason_in_words(reason: MissReason) -> str:
    """Return the reason for cache misses on one line."""
    return one_line(reason.reason)


def reason_rows(totals: CacheTotals) -> Iterator[tuple[str, str, str, str]]:
    """Yield (task name, number of tasks, reason, nearest earlier result) for each reason."""
    for each in totals.reasons:
        nearest = each.nearest[:12]
        yield one_line(each.task), str(each.count), reason_in_words(each), nearest


# A cluster as plain text: summary, pools, tasks, managers, failures and decisions -----------------


#: Maximum number of rows with task names, and of rows with decisions or failures.
SHOWN_TASKS, SHOWN_EVENTS = 40, 10


def page(overview: Overview, events: Events, width: int) -> list[str]:
    """Return a cluster as lines. Its tables are at most ``width`` cells wide."""
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


# Events of a cluster as tables: decisions, failures by cause, and worker use ----------------------


DECISION_COLUMNS = (
    Column("time"),
    Column("pool", width=16),
    Column("from", number=True),
    Column("to", number=True),
    Column("by", width=12),
    Column("reason"),
)
FAILURE_COLUMNS = (
    Column("tasks", number=True),
    Column("last"),
    Column("error", width=24),
    Column("task", width=24),
    Column("message"),
)
#: Characters of a chart by height, the lowest first.
_HEIGHTS = " ▁▂▃▄▅▆▇█"
#: Indices of a pool's values in a sample.
_USED, _SLOTS, _WAITING = 2, 3, 4


def decisions_table(decisions: Sequence[Mapping[str, Any]], now: float) -> Table:
    """Return ``scaling.jsonl`` rows (the oldest first) as a table with the newest first."""
    rows = []
    for number, told in reversed(list(enumerate(decisions))):
        tag, at = str(told.get("tag") or ""), told.get("timestamp")
        values = (at, tag, told.get("from"), told.get("to"), told.get("source"), told.get("reason"))
        texts = (
            clock(at, now),
            tag or UNTAGGED_NAME,
            *("-" if v is None else v for v in values[2:]),
        )
        rows.append(row(f"{at} {number}", values, texts, pool=tag))
    return Table(DECISION_COLUMNS, tuple(rows), "no decisions yet")


def failures_table(failures: Iterable[Mapping[str, Any]], now: float) -> Table:
    """Return the failures grouped by cause, the newest first.
    A cause is an error class with its location in the user's code, or else its task. ``failures``
    are rows of ``failures.jsonl``, the oldest first. ``now`` is in seconds since 1970.
    """
    rows = []
    for cause, (count, last) in reversed(list(failures_by_cause(failures).items())):
        details = last.get("details") or {}
        at, name = last.get("timestamp"), details.get("task_name") or details.get("phase") or ""
        values = (count, at, last.get("failure_class", ""), name, last.get("message", ""))
        texts = (count, clock(at, now), *values[2:])
        rows.append(row(cause, values, texts, pool=details.get("tag") or ""))
    return Table(FAILURE_COLUMNS, tuple(rows), "no failures")


def failures_by_cause(
    failures: Iterable[Mapping[str, Any]],
) -> dict[str, tuple[int, Mapping[str, Any]]]:
    """Map causes to their number of failed tasks and latest row, the latest cause last."""
    groups: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for told in failures:
        details = told.get("details") or {}
        place = details.get("frame") or details.get("task_name") or details.get("tag") or ""
        cause = f"{told.get('failure_class')}\n{place}"
        count, _ = groups.pop(cause, (0, told))
        groups[cause] = count + int(told.get("count") or 1), told
    return groups


def failure_in_words(failure: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    """Return a failure's parts as (title, text). Callers must make them harmless."""
    details = failure.get("details") or {}
    facts = (
        ("Error", f"{failure.get('failure_class', '?')}: {failure.get('message', '')}"),
        ("Time", clock(failure.get("timestamp"), now)),
        ("Task", details.get("task_name")),
        ("Key", details.get("task_id")),
        ("Arguments", details.get("arguments")),
        ("Where", details.get("frame")),
        ("Pool", details.get("tag")),
        ("Worker", details.get("worker")),
        ("Attempts", details.get("tries")),
        ("Standard error", details.get("stderr")),
        ("Last output of the worker", details.get("output")),
        ("Traceback", details.get("traceback")),
    )
    return [(title, str(text)) for title, text in facts if text not in (None, "")]


def use_lines(samples: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return each pool's queue and utilisation over time as charts of ``width`` characters."""
    lines = []
    for tag in dict.fromkeys(tag for sample in samples for tag in sample["pools"]):
        points = [sample["pools"][tag] for sample in samples if tag in sample["pools"]]
        slots = max(1, *(point[_SLOTS] for point in points))
        longest = max(point[_WAITING] for point in points)
        last = points[-1]
        name = one_line(tag or UNTAGGED_NAME)
        lines += [
            f"{name}: {last[_USED]} of {last[_SLOTS]} slots used, {last[_WAITING]} tasks wait",
            f"  used slots (of {slots})",
            "  " + drawn([point[_USED] for point in points], slots, width - 2),
            f"  waiting tasks (peak: {longest})",
            "  " + drawn([point[_WAITING] for point in points], max(1, longest), width - 2),
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
