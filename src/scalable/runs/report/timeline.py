"""Timeline of a run: workers over time, coloured by task name. Does no I/O.
A run with few tasks shows each task. Otherwise, each cell (column and row) has the colour of the
task name with the most time, so the size does not depend on the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.palette import LIGHT, numbers_of
from scalable.runs.report.spans import Presence, Span, number, text

#: Number of columns, and maximum number of rows.
COLUMNS, ROWS = 480, 64
#: Maximum number of tasks that are shown one by one.
SINGLE_CALLS = 1500
#: Number of shades of a cell, by the share of its time in which workers had tasks.
SHADES = 4
#: Maximum numbers of decisions and of cells with failures that are marked.
_MARKS = 300
#: Colour index of task names that have no colour of their own.
OTHER = len(LIGHT)


@dataclass(frozen=True)
class Block:
    """Part of a row: a task, or adjacent cells of one colour."""

    #: Position in columns.
    begin: float
    width: float
    #: Number of a colour in the palette, :data:`OTHER` for other names.
    colour: int
    #: 1 to :data:`SHADES`, where the last means that workers had tasks all the time.
    shade: int = SHADES
    #: Description of a single task, None for cells.
    title: str | None = None


@dataclass(frozen=True)
class TimelineRow:
    """Row of a timeline: one worker, or several of one tag."""

    tag: str
    #: Name of the worker, or the number of the workers.
    name: str
    #: Parts of the row in which workers ran tasks.
    blocks: tuple[Block, ...]
    #: Pairs of start and width, in columns, in which a worker was connected.
    present: tuple[tuple[float, float], ...]
    #: Positions, in columns, of failed tasks and of lost workers.
    failures: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    workers: int = 1


@dataclass(frozen=True)
class Decision:
    """Change of a desired worker count: its position in columns, and its reason."""

    at: float
    seconds: float
    tag: str
    before: str
    after: str
    source: str
    reason: str
    grows: bool


@dataclass(frozen=True)
class Timeline:
    """Timeline of :data:`COLUMNS` columns and at most :data:`ROWS` rows."""

    #: Epoch seconds.
    begin: float
    end: float
    rows: tuple[TimelineRow, ...] = ()
    decisions: tuple[Decision, ...] = ()
    #: Colour numbers by task name, the name with the longest total time first.
    names: Mapping[str, int] | None = None
    #: Number of task names that share the colour :data:`OTHER`.
    others: int = 0


def make_timeline(
    spans: Sequence[Span],
    present: Sequence[Presence],
    scaling: Iterable[Mapping[str, Any]],
    within: tuple[float, float],
) -> Timeline:
    """Return the timeline of a run. ``within`` is its start and finish in epoch seconds."""
    first, last = within
    scale = COLUMNS / (last - first) if last > first else 0.0
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.name] = totals.get(span.name, 0.0) + span.end - span.begin
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    colours = numbers_of(ordered[: len(LIGHT)])
    shown = {name: colours[name] for name in ordered[: len(LIGHT)]}
    return Timeline(
        begin=first,
        end=last,
        rows=tuple(_rows(spans, present, shown, _Axis(first, scale))),
        decisions=decisions_of(scaling, first, scale),
        names=shown,
        others=len(ordered) - len(shown),
    )


@dataclass(frozen=True)
class _Axis:
    """Axis that converts epoch seconds to columns."""

    first: float
    scale: float

    def __call__(self, moment: float) -> float:
        return min(max((moment - self.first) * self.scale, 0.0), float(COLUMNS))


def decisions_of(
    rows: Iterable[Mapping[str, Any]], first: float, scale: float = 0.0
) -> tuple[Decision, ...]:
    """Return the changes of desired worker counts, positioned on the timeline's axis."""
    axis = _Axis(first, scale)
    found = []
    for row in rows:
        moment = number(row.get("timestamp"))
        if moment is None:
            continue
        before, after = (number(row.get(key)) for key in ("from", "to"))
        found.append(
            Decision(
                at=axis(moment),
                seconds=moment - first,
                tag=text(row.get("tag")),
                before="" if before is None else f"{before:.0f}",
                after="" if after is None else f"{after:.0f}",
                source=text(row.get("source")),
                reason=text(row.get("reason")),
                grows=row.get("action") == "scale-up",
            )
        )
    return tuple(found)


def _rows(
    spans: Sequence[Span],
    present: Sequence[Presence],
    colours: Mapping[str, int],
    axis: _Axis,
) -> list[TimelineRow]:
    """Return a row for each worker, or for groups of workers if there are too many."""
    workers: dict[str, dict[str, None]] = {}
    for presence in sorted(present, key=lambda p: (p.tag, p.begin)):
        workers.setdefault(presence.tag, {})[presence.worker] = None
    # Tasks may be recorded of workers that are not.
    known = {worker for names in workers.values() for worker in names}
    for span in spans:
        if span.worker not in known:
            known.add(span.worker)
            workers.setdefault(span.tag, {})[span.worker] = None
    places: dict[str, int] = {}
    groups: list[tuple[str, list[str]]] = []
    for tag, members in _groups({tag: list(names) for tag, names in workers.items()}):
        places |= dict.fromkeys(members, len(groups))
        groups.append((tag, members))
    by_row: list[list[Span]] = [[] for _ in groups]
    for span in spans:
        by_row[places[span.worker]].append(span)
    here: list[list[Presence]] = [[] for _ in groups]
    for presence in present:
        here[places[presence.worker]].append(presence)
    single = len(spans) <= SINGLE_CALLS and all(len(members) == 1 for _, members in groups)
    return [
        TimelineRow(
            tag=tag,
            name=members[0] if len(members) == 1 else f"{len(members)} workers",
            blocks=tuple(
                _calls(own, colours, axis)
                if single
                else _cells(own, colours, axis, max(1, len(members)))
            ),
            present=tuple((axis(p.begin), axis(p.end) - axis(p.begin)) for p in there),
            failures=_places(axis(span.end) for span in own if span.failed),
            losses=_places(axis(p.end) for p in there if p.lost),
            workers=len(members),
        )
        for (tag, members), own, there in zip(groups, by_row, here, strict=True)
    ]


def _groups(workers: Mapping[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Return up to :data:`ROWS` groups, each of workers with one tag, and a group of other tags."""
    count = sum(len(names) for names in workers.values())
    if count <= ROWS:
        return [(tag, [name]) for tag, names in workers.items() for name in names]
    found: list[tuple[str, list[str]]] = []
    tags = sorted(workers, key=lambda tag: -len(workers[tag]))[:ROWS]
    left = ROWS - len(tags)
    for tag in sorted(tags):
        names = workers[tag]
        rows = 1 + int(left * len(names) / count)
        size = -(-len(names) // rows)
        found += [(tag, names[at : at + size]) for at in range(0, len(names), size)]
    rest = [name for tag in workers.keys() - set(tags) for name in workers[tag]]
    return [*found, ("other tags", rest)] if rest else found


def _calls(spans: Iterable[Span], colours: Mapping[str, int], axis: _Axis) -> list[Block]:
    return [
        Block(
            begin=axis(span.begin),
            width=axis(span.end) - axis(span.begin),
            colour=colours.get(span.name, OTHER),
            title=f"{span.name}\n{span.end - span.begin:.3g} s"
            f"{', failed' if span.failed else ''}, {span.worker}",
        )
        for span in spans
    ]


def _cells(
    spans: Iterable[Span], colours: Mapping[str, int], axis: _Axis, workers: int
) -> list[Block]:
    """Return one block for each series of adjacent cells of one colour in a row."""
    kinds = OTHER + 1
    filled = [0.0] * (COLUMNS * kinds)
    for span in spans:
        low, high = axis(span.begin), axis(span.end)
        colour = colours.get(span.name, OTHER)
        first, last = int(low), min(int(high), COLUMNS - 1)
        if first >= last:
            filled[min(first, COLUMNS - 1) * kinds + colour] += high - low
            continue
        filled[first * kinds + colour] += first + 1 - low
        filled[last * kinds + colour] += high - last
        for column in range(first + 1, last):
            filled[column * kinds + colour] += 1
    blocks: list[Block] = []
    for column in range(COLUMNS):
        cell = filled[column * kinds : (column + 1) * kinds]
        total = sum(cell)
        if total <= 0:
            continue
        colour = cell.index(max(cell))
        shade = max(1, min(SHADES, round(SHADES * total / workers)))
        before = blocks[-1] if blocks else None
        if (
            before is not None
            and before.begin + before.width == column
            and (before.colour, before.shade) == (colour, shade)
        ):
            blocks[-1] = Block(before.begin, before.width + 1, colour, shade)
        else:
            blocks.append(Block(column, 1, colour, shade))
    return blocks


def _places(positions: Iterable[float]) -> tuple[float, ...]:
    """Return at most ``_MARKS`` different positions, rounded and sorted."""
    return tuple(sorted({round(position) for position in positions}))[:_MARKS]
