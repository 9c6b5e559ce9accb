"""Utilisation of each pool's workers and memory over a run, advice from it, and the timeline.
The advice is about memory to reserve, worker counts and the longest chain. Does no I/O.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any

from scalable.model import MemoryAdvice
from scalable.palette import LIGHT, numbers_of
from scalable.planning.notices import judge_memory, memory_in_words
from scalable.quantiles import quantile
from scalable.runs.calls import Chain, Presence, RecordedTasks, Span
from scalable.runs.reading import RunRecord
from scalable.runs.streams import Row, mapping, number, text
from scalable.runs.summary import PoolSummary, Summary
from scalable.units import counted, format_duration, parse_bytes
from scalable.views.columns import DECISIONS, TaskRow
from scalable.views.tables import Column, Listing, Table, fitted

#: Number of points of a time series.
POINTS = 120


@dataclass(frozen=True)
class PoolUse:
    """Utilisation of one tag's workers. Memory is in bytes, and None means unknown."""

    tag: str
    #: Maximum number of workers at one time.
    workers: int
    #: Connection time of all workers, and its part with at least one task.
    connected_s: float
    busy_s: float
    cost: float | None = None
    #: Part of ``cost`` that paid for time without tasks.
    idle_cost: float | None = None
    #: Reserved bytes per worker.
    reserved_memory: int | None = None
    #: 95 % quantile of the peak memory of tasks, followed by the maximum.
    used_memory: float | None = None
    most_memory: float | None = None
    #: Number of tasks whose memory was measured.
    measured: int = 0
    #: Mean number of connected and of busy workers in :data:`POINTS` equal parts of the run.
    connected: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    #: Mean number of queued tasks in the same parts of the run.
    queued: tuple[float, ...] = ()
    numbers: PoolSummary = field(default_factory=PoolSummary)

    @property
    def idle_s(self) -> float:
        return max(0.0, self.connected_s - self.busy_s)

    @property
    def share(self) -> float | None:
        """Share of the connected time in which workers had tasks, or None without workers."""
        return min(1.0, self.busy_s / self.connected_s) if self.connected_s > 0 else None


def pool_uses(
    record: RunRecord,
    calls: RecordedTasks,
    spans: Iterable[Span],
    present: Sequence[Presence],
    within: tuple[float, float],
    summary: Summary,
) -> tuple[PoolUse, ...]:
    """Return each pool's utilisation between the two epoch times in ``within``."""
    tags = {presence.worker: presence.tag for presence in present}
    ran: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    queued, busy, connected = ran.copy(), ran.copy(), ran.copy()
    for span in spans:
        if span.worker in tags:
            ran[span.worker].append((span.begin, span.end))
            if span.queued_s:
                queued[tags[span.worker]].append((span.begin - span.queued_s, span.begin))
    for worker, intervals in ran.items():
        busy[tags[worker]] += merged(intervals)
    for presence in present:
        connected[presence.tag].append((presence.begin, presence.end))
    reserved, peaks = reserved_memory(record.plan, record.resources), _peaks(calls)
    cost, found = summary.cost, []
    for tag, numbers in sorted(summary.workers.items()):
        memory = sorted(peaks[tag])
        found.append(
            PoolUse(
                tag=tag,
                workers=_most_at_once(connected[tag]),
                connected_s=sum(end - begin for begin, end in connected[tag]),
                busy_s=sum(end - begin for begin, end in busy[tag]),
                cost=None if cost is None else cost.by_tag.get(tag),
                idle_cost=None if cost is None else cost.idle_by_tag.get(tag),
                reserved_memory=reserved.get(tag),
                used_memory=quantile(memory, 0.95) if memory else None,
                most_memory=memory[-1] if memory else None,
                measured=len(memory),
                connected=course(connected[tag], within),
                busy=course(busy[tag], within),
                queued=course(queued[tag], within),
                numbers=numbers,
            )
        )
    return tuple(found)


def _peaks(calls: RecordedTasks) -> defaultdict[str, array[float]]:
    """Return the peak memory in bytes of successful tasks and bundles by tag."""
    found: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
    peaks = calls.measurements["peak_memory"]
    for (tag, _), own in calls.succeeded().items():
        found[str(tag)].extend(peaks[call] for call in own if not math.isnan(peaks[call]))
    return found


def reserved_memory(plan: Mapping[str, Any], resources: Iterable[Row] = ()) -> dict[str, int]:
    """Map tags to the bytes that a worker reserves, from the plan or else ``resources.jsonl``."""
    found = {
        tag: int(limit)
        for row in resources
        if (limit := number(row.get("limit"))) and (tag := text(row.get("tag")))
    }
    wanted = mapping(mapping(plan.get("scale_plan")).get("resources_by_tag"))
    for tag, amounts in wanted.items():
        if written := mapping(amounts).get("memory"):
            with suppress(ValueError, OverflowError):
                found[tag] = parse_bytes(written)
    return found


def course(
    intervals: Iterable[tuple[float, float]], within: tuple[float, float], points: int = POINTS
) -> tuple[float, ...]:
    """Return the mean number of overlapping intervals in equal time steps."""
    first, last = within
    width = (last - first) / points
    if width <= 0:
        return ()
    # Partly covered parts are added at once, wholly covered ones by differences.
    partly, steps = [0.0] * (points + 1), [0.0] * (points + 2)
    for begin, end in intervals:
        low = min(max((begin - first) / width, 0.0), float(points))
        high = min(max((end - first) / width, 0.0), float(points))
        left, right = int(low), int(high)
        if left == right:
            partly[left] += high - low
            continue
        partly[left] += left + 1 - low
        partly[right] += high - right
        steps[left + 1] += 1
        steps[right] -= 1
    values, whole = [], 0.0
    for point in range(points):
        whole += steps[point]
        values.append(partly[point] + whole)
    return tuple(values)


def _most_at_once(intervals: Iterable[tuple[float, float]]) -> int:
    """Return the largest number of overlapping intervals."""
    changes = sorted(change for begin, end in intervals for change in ((begin, 1), (end, -1)))
    return max(accumulate(change for _, change in changes), default=0)


def merged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as disjoint intervals, in ascending order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


# Advice -------------------------------------------------------------------------------------------

#: If workers have tasks for less or more than these shares of the time, advise other counts.
IDLE, BUSY = 0.5, 0.85
#: Minimum number of tasks before other counts are advised.
LEAST_CALLS = 10


def memory_advice(uses: Iterable[PoolUse]) -> tuple[MemoryAdvice, ...]:
    """Return advice for pools that reserve much more or less memory than their tasks used."""
    found = (
        judge_memory(use.tag, use.reserved_memory, int(use.used_memory), use.measured)
        for use in uses
        if use.reserved_memory is not None and use.used_memory is not None
    )
    return tuple(advice for advice in found if advice is not None)


def advise(
    uses: Sequence[PoolUse],
    spans: Sequence[Span],
    present: Sequence[Presence],
    chain: Chain | None,
    most: int | None = None,
) -> tuple[str, ...]:
    """Return all advice as sentences. ``chain`` is None without dependent tasks.
    ``most`` is the largest number of workers that the manifest allows in all pools together.
    """
    sentences = [memory_in_words(advice) for advice in memory_advice(uses)]
    tags = {presence.worker: presence.tag for presence in present}
    by_tag: dict[str, list[Span]] = {}
    for span in spans:
        by_tag.setdefault(tags.get(span.worker, span.tag), []).append(span)
    spare = math.inf if most is None else most - sum(use.workers for use in uses)
    for use in uses:
        sentences += _counts(use, by_tag.get(use.tag, []), chain, spare)
    if spans and chain is not None:
        length = max(span.end for span in spans) - min(span.begin for span in spans)
        if length > 0 and chain.seconds >= IDLE * length:
            share = round(100 * min(1.0, chain.seconds / length))
            sentences.append(
                f"The longest chain of {counted(chain.tasks, 'task')} took "
                f"{format_duration(chain.seconds)}, {share} % of the {format_duration(length)} "
                "from the first task to the last: more workers do not make it shorter, "
                "but faster tasks or smaller steps do."
            )
    return tuple(sentences)


def _counts(
    use: PoolUse, spans: Sequence[Span], chain: Chain | None, spare: float
) -> Iterator[str]:
    share = use.share
    if share is None or len(spans) < LEAST_CALLS:
        return
    busy = f"Workers of {use.tag} had tasks in {100 * share:.0f} % of their time"
    length = max(span.end for span in spans) - min(span.begin for span in spans)
    if share < IDLE and use.workers > 1 and length > 0:
        enough = max(1, math.ceil(use.busy_s / length / BUSY))
        if enough < use.workers:
            yield (
                f"{busy}: the same work fits into {counted(enough, 'worker')} instead of "
                f"{use.workers} if it is spread evenly."
            )
    elif share > BUSY and length > 0:
        times = [span.end - span.begin for span in spans]
        floor = max(*times, 0.0 if chain is None else chain.seconds)
        more = use.workers + int(max(0, min(use.workers, spare)))
        shorter = max(floor, length * use.workers / more)
        if shorter < 0.9 * length:
            yield (
                f"{busy}, with {format_duration(sum(times))} of tasks on "
                f"{counted(use.workers, 'worker')}: {more} workers could shorten "
                f"{format_duration(length)} to about {format_duration(shorter)}."
            )


# Columns and charts -------------------------------------------------------------------------------


def _in_both(name: str, of: str, kind: str, *, optional: bool = False) -> Column:
    """Return a column that the page and a terminal show."""
    displays, heading = ("report", "workers"), name.replace("_", " ")
    return Column(name, heading, attrgetter(of), kind, displays, optional=optional)


_NUMBERS = ("requested", "started", "removed", "final", "lost")
#: The table of a finished run's pools: on its page, and in a terminal.
POOLS_OF_RUN = Listing(
    (
        _in_both("pool", "tag", "text"),
        *(_in_both(name, f"numbers.{name}", "count") for name in _NUMBERS),
        Column("workers", "most workers", attrgetter("workers"), "count"),
        Column(
            "share",
            "with tasks",
            attrgetter("share"),
            "count",
            text=lambda use: "-" if use.share is None else f"{100 * use.share:.0f} %",
        ),
        Column("connected", "connected", attrgetter("connected_s"), "duration"),
        Column("idle", "idle", attrgetter("idle_s"), "duration"),
        _in_both("cost", "cost", "money", optional=True),
        _in_both("idle_cost", "idle_cost", "money", optional=True),
        Column("reserved", "memory reserved", attrgetter("reserved_memory"), "bytes"),
        Column("used", "used by 95 %", attrgetter("used_memory"), "bytes"),
        Column("most_used", "most used", attrgetter("most_memory"), "bytes"),
    ),
    key=attrgetter("tag"),
    pool=attrgetter("tag"),
    displays=("report",),
    empty="No worker connected.",
)


# Times of a finished run are those since its start, as in the timeline.
_AFTER = Column("after", "after", itemgetter("after"), "duration")
_DECISIONS = Listing((_AFTER, *DECISIONS.columns[1:]), DECISIONS.key, ("report",))


def decisions_of_run(changes: Iterable[Mapping[str, Any]], first: float) -> Table:
    """Return the changes of pools in a run that started at ``first`` (epoch seconds)."""
    timed = ((row, number(row.get("timestamp"))) for row in changes)
    rows = [
        {**row, "number": place, "after": moment - first}
        for place, (row, moment) in enumerate(timed)
        if moment is not None
    ]
    return _DECISIONS.table(rows, "report")


def task_rows(summary: Summary) -> tuple[TaskRow, ...]:
    """Return the tasks of a run by name, those with the longest total time first."""
    rows = (
        replace(row, task=replace(row.task, name=fitted(row.task.name, LONGEST_NAME)))
        for row in summary.task_names.values()
    )
    return tuple(sorted(rows, key=lambda row: -row.task.sums["duration_s"].total))


#: Maximum number of characters of a task name.
LONGEST_NAME = 300
#: Maximum number of pools with charts.
_CHARTED = 20


def charts_of(uses: Sequence[PoolUse], seconds: float) -> list[dict[str, Any]]:
    """Return two charts of each pool: its workers, and its queued tasks."""
    width = seconds / POINTS

    def line(name: str, values: Sequence[float]) -> list[Any]:
        return [name, [[round((i + 0.5) * width, 3), round(v, 2)] for i, v in enumerate(values)]]

    charts = []
    for use in (use for use in uses[:_CHARTED] if use.workers and use.connected):
        workers = [line("with tasks", use.busy), line("connected", use.connected)]
        queued = [line("queued", use.queued)]
        charts += [
            {"pool": use.tag, "title": "workers with tasks", "unit": "workers", "series": workers},
            {"pool": use.tag, "title": "queued tasks", "unit": "tasks", "series": queued},
        ]
    return charts


# Timeline of the workers, as plain values that the page draws -------------------------------------

#: Number of columns, and about the largest number of rows.
COLUMNS, ROWS = 480, 64
#: Maximum number of tasks that are shown one by one. Otherwise, each cell (column and row) has the
#: colour of the task name with the most time, so the size does not depend on the number of tasks.
SINGLE_CALLS = 1500
#: Number of shades of a cell, by the share of its time in which workers had tasks.
SHADES = 4
#: Maximum numbers of decisions, and of failures in one row, that are marked.
_MARKS = 300
#: Maximum number of characters of a name.
_NAME = 90


def make_timeline(
    spans: Sequence[Span],
    present: Sequence[Presence],
    decisions: Iterable[Mapping[str, Any]],
    within: tuple[float, float],
) -> dict[str, Any]:
    """Return the timeline of a run between two epoch times as plain values.
    ``cells`` has one list for each row, with five numbers for each bar: first column, width in
    columns, index of ``names``, 1 for a failed task, and the shade. Other times are in seconds
    since the start.
    """
    first, last = within
    unit = (last - first) / COLUMNS
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.name] = totals.get(span.name, 0.0) + span.end - span.begin
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    colours = numbers_of(ordered[: len(LIGHT)])
    groups = _groups(_workers(spans, present))
    places = {name: place for place, (_, members) in enumerate(groups) for name in members}
    by_row: list[list[Span]] = [[] for _ in groups]
    for span in spans:
        by_row[places[span.worker]].append(span)
    connected: list[list[tuple[float, float]]] = [[] for _ in groups]
    for each in present:
        connected[places[each.worker]].append((each.begin, each.end))
    single = len(spans) <= SINGLE_CALLS and all(len(members) == 1 for _, members in groups)
    # Names without a colour have one entry, unless each task is shown with its name.
    names = ordered if single else [name for name in ordered if name in colours]
    indices = {name: index for index, name in enumerate(names)}
    return {
        "end": last - first,
        "unit": unit,
        "shades": SHADES,
        "rows": [
            fitted(members[0] if len(members) == 1 else f"{tag}: {len(members)} workers", _NAME)
            for tag, members in groups
        ],
        "names": [
            *([fitted(name, _NAME), colours.get(name, -1)] for name in names),
            ["other task names", -1],
        ],
        "cells": [
            _bars(own, indices, within) if single else _cells(own, indices, within, len(members))
            for own, (_, members) in zip(by_row, groups, strict=True)
        ],
        "marks": []
        if single
        else [
            [row, column * unit]
            for row, own in enumerate(by_row)
            for column in sorted({round(_column(s.end, within)) for s in own if s.failed})[:_MARKS]
        ],
        "present": [
            [row, round(begin - first, 3), round(end - first, 3)]
            for row, intervals in enumerate(connected)
            for begin, end in merged(intervals)
        ],
        "lost": [
            [places[each.worker], round(each.end - first, 3)] for each in present if each.lost
        ][:_MARKS],
        "decisions": [
            [round(at - first, 3), row.get("action") == "scale-up"]
            for row in decisions
            if (at := number(row.get("timestamp"))) is not None
        ][-_MARKS:],
    }


def _workers(spans: Iterable[Span], present: Iterable[Presence]) -> dict[str, list[str]]:
    """Map tags to workers. Tasks may be recorded of workers that are not."""
    tags = {each.worker: each.tag for each in sorted(present, key=attrgetter("tag", "begin"))}
    for span in spans:
        tags.setdefault(span.worker, span.tag)
    workers: dict[str, list[str]] = {}
    for worker, tag in tags.items():
        workers.setdefault(tag, []).append(worker)
    return workers


def _groups(workers: Mapping[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Return groups of workers of one tag, so that all groups but the last of a tag are as large.
    There are at most :data:`ROWS`, and one more for each tag.
    """
    size = max(1, -(-sum(map(len, workers.values())) // ROWS))
    return [
        (tag, names[at : at + size])
        for tag, names in workers.items()
        for at in range(0, len(names), size)
    ]


def _column(moment: float, within: tuple[float, float]) -> float:
    first, last = within
    share = (moment - first) / (last - first) if last > first else 0.0
    return COLUMNS * min(max(share, 0.0), 1.0)


def _bars(
    spans: Iterable[Span], names: Mapping[str, int], within: tuple[float, float]
) -> list[float]:
    bars: list[float] = []
    for span in spans:
        begin, end = _column(span.begin, within), _column(span.end, within)
        bars += (round(begin, 2), round(end - begin, 2), names[span.name], int(span.failed), SHADES)
    return bars


def _cells(
    spans: Iterable[Span], names: Mapping[str, int], within: tuple[float, float], workers: int
) -> list[float]:
    """Return one bar for each series of adjacent cells of one colour in a row."""
    times: list[list[tuple[float, float]]] = [[] for _ in range(len(names) + 1)]
    for span in spans:
        times[names.get(span.name, len(names))].append((span.begin, span.end))
    bars: list[list[float]] = []
    filled = zip(*(course(each, within, COLUMNS) for each in times), strict=True)
    for column, cell in enumerate(filled):
        if sum(cell) <= 0:
            continue
        name = cell.index(max(cell))
        shade = max(1, min(SHADES, round(SHADES * sum(cell) / workers)))
        if bars and bars[-1][0] + bars[-1][1] == column and bars[-1][2:] == [name, 0, shade]:
            bars[-1][1] += 1
        else:
            bars.append([column, 1, name, 0, shade])
    return [value for bar in bars for value in bar]
