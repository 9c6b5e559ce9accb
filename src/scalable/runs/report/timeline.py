"""The timeline of a run, as plain values that the page draws. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from scalable.palette import LIGHT, numbers_of
from scalable.runs.calls import Presence, Span
from scalable.runs.report.usage import course, merged
from scalable.runs.streams import number
from scalable.views.tables import fitted

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
