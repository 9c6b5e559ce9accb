"""Tables that all displays render: columns that format rows, and the rows' keys and values."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Any, Self

from scalable.harmless import one_line
from scalable.model.costs import CURRENCY
from scalable.units import format_amount, format_bytes, format_duration

_GAP = "  "
_INDENT = "  "
#: Width of printed tables and reports in columns of a terminal.
WIDTH = 100
#: Minimum width to which a column with text is shortened.
_LEAST = 8
#: Kinds of values. A ``progress`` is a mapping of states to numbers of tasks.
KINDS = ("text", "count", "duration", "bytes", "money", "time", "progress")
_NUMBERS = frozenset({"count", "duration", "bytes", "money"})
#: Displays of a cluster: a status as its manager reports it, a printed page, the terminal
#: application, a progress display, a notebook, and the dashboard.
DISPLAYS = frozenset({"status", "once", "top", "progress", "notebook", "page"})
#: Displays of a finished run: its page, and the tables of its report in a terminal. Their numbers
#: are final, so that they show no column of zeros.
REPORTS = frozenset({"report", "duration_s", "queued_s", "peak_memory", "workers"})


@dataclass(frozen=True)
class Column:
    """One column of the tables of all displays."""

    name: str
    heading: str
    #: Returns the value of a row's object, to sort by and to export. None if it is unknown.
    of: Callable[[Any], Any]
    #: One of :data:`KINDS`.
    kind: str = "text"
    #: Displays that show the column. None for all that show its listing.
    displays: Collection[str] | None = None
    #: Series of Prometheus with the values, such as ``tasks_total{state="done"}``.
    metric: str | None = None
    help: str = ""
    #: Returns the string for a row's object. By default the formatted value.
    text: Callable[[Any], object] | None = None
    #: True for a column that is shown only if it has a value other than 0, None and "".
    optional: bool = False
    #: Heading in a terminal.
    short: str = ""
    #: Maximum width of its texts in terminal cells, or None for no limit.
    width: int | None = None

    @property
    def title(self) -> str:
        return self.short or self.heading

    @property
    def number(self) -> bool:
        """True if its cells are numbers, which are aligned to the right and never shortened."""
        return self.kind in _NUMBERS

    def cell(self, row: Any, now: float) -> str:
        """Return the string for a row's object, on one line and without control characters."""
        return one_line(
            formatted(self.of(row), self.kind, now) if self.text is None else self.text(row)
        )


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    #: Key that identifies the row in its table.
    key: str
    #: One string for each column: on one line and without control characters.
    cells: tuple[str, ...]
    #: One value for each column, to sort by.
    values: tuple[Any, ...]
    #: Tag of the row's pool. None for a row that belongs to none.
    pool: str | None = None
    #: Numbers of tasks by state in the order of a bar, for the column with the progress.
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows under headings."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(default=())
    #: Text that is shown for a table without rows.
    empty: str = "nothing"

    def sorted(self, name: str, *, reverse: bool = False) -> Self:
        """Return the table sorted by the column with this name, or unchanged if there is none."""
        names = [column.name for column in self.columns]
        if name not in names:
            return self
        place = names.index(name)
        rows = sorted(self.rows, key=lambda row: _order(row.values[place]), reverse=reverse)
        return replace(self, rows=tuple(rows))

    def containing(self, text: str) -> Self:
        """Return the table with only the rows that contain a string, ignoring case."""
        wanted = text.casefold().strip()
        if not wanted:
            return self
        places = [n for n, column in enumerate(self.columns) if column.kind != "progress"]
        rows = (
            row
            for row in self.rows
            if wanted in " ".join(row.cells[place] for place in places).casefold()
        )
        return replace(self, rows=tuple(rows))

    def of_pool(self, tag: str | None) -> Self:
        """Return the table with only the rows of one pool, or all rows for None."""
        if tag is None:
            return self
        return replace(self, rows=tuple(row for row in self.rows if row.pool == tag))

    def first(self, count: int) -> Self:
        return replace(self, rows=self.rows[:count])

    def last(self, count: int) -> Self:
        return replace(self, rows=self.rows[-count:])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; ``parts`` are the numbers of tasks that a bar shows."""
        return {
            "columns": [
                {"name": c.name, "heading": c.heading, "kind": c.kind, "help": c.help}
                for c in self.columns
            ],
            "rows": [dict(vars(row)) for row in self.rows],
        }

    # As lines of a terminal -----------------------------------------------------------------------

    def widths(self, width: int, gap: int) -> list[int]:
        """Return column widths for lines of ``width`` cells. Number columns are never shortened."""
        widths = [self._widest(place, column) for place, column in enumerate(self.columns)]
        room = width - gap * (len(widths) - 1)
        # A shorter bar is clearer than a text without its middle.
        for kinds in (("progress",), ("text", "time")):
            while sum(widths) > room:
                places = [
                    place
                    for place, column in enumerate(self.columns)
                    if column.kind in kinds and widths[place] > _LEAST
                ]
                if not places:
                    break
                widths[max(places, key=widths.__getitem__)] -= 1
        return widths

    def _widest(self, place: int, column: Column) -> int:
        if column.kind == "progress":
            return max(BAR_WIDTH, width_of(column.title))
        cells = [column.title, *(row.cells[place] for row in self.rows)]
        widest = max(map(width_of, cells))
        return widest if column.width is None else min(widest, column.width)

    def lines(self, width: int = WIDTH) -> list[str]:
        """Return the table as lines of at most ``width`` cells, starting with the headings."""
        widths = self.widths(width - len(_INDENT), len(_GAP))
        texts = [
            tuple(
                padded(column.title, wide, right=column.number)
                for column, wide in zip(self.columns, widths, strict=True)
            ),
            *(self.drawn(row, widths) for row in self.rows),
        ]
        return [(_INDENT + _GAP.join(cells)).rstrip() for cells in texts]

    def drawn(self, row: Row, widths: Sequence[int]) -> tuple[str, ...]:
        """Return a row's cells with exactly these widths, and its progress as a bar."""
        return tuple(
            padded(
                bar(row.parts, wide) if column.kind == "progress" else cell,
                wide,
                right=column.number,
            )
            for cell, wide, column in zip(row.cells, widths, self.columns, strict=True)
        )


@dataclass(frozen=True)
class Listing:
    """The columns of one table in all displays, and what identifies its rows."""

    columns: tuple[Column, ...]
    #: Returns the key of a row's object.
    key: Callable[[Any], str]
    #: Displays that show a column which does not name its own.
    displays: Collection[str] = DISPLAYS
    #: Returns the tag of the pool of a row's object.
    pool: Callable[[Any], str | None] = lambda _row: None
    empty: str = "nothing"

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def table(self, rows: Iterable[Any], display: str, now: float = 0.0) -> Table:
        """Return the table of one display. ``now`` is in seconds since 1970."""
        listed = list(rows)
        shown = [
            column
            for column in self.columns
            if display in (self.displays if column.displays is None else column.displays)
            and not (
                (column.optional or (column.kind == "count" and display in REPORTS))
                and all(column.of(row) in _NOTHING for row in listed)
            )
        ]
        return Table(tuple(shown), tuple(self._row(row, shown, now) for row in listed), self.empty)

    def _row(self, row: Any, columns: Sequence[Column], now: float) -> Row:
        values: list[Any] = []
        parts: Mapping[str, int] = {}
        for column in columns:
            value = column.of(row)
            if column.kind == "progress":
                parts, value = value, share_of(value)
            values.append(value)
        cells = tuple(column.cell(row, now) for column in columns)
        return Row(self.key(row), cells, tuple(values), self.pool(row), parts)


_NOTHING = (0, None, "")


def text_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: Collection[str] = (),
    empty: str = "nothing",
) -> Table:
    """Return a table of strings whose first column, and those in ``left``, are not numbers.
    A row's first cell is its key. None is shown as a dash.
    """
    columns = tuple(
        Column(name, name, itemgetter(place), "text" if not place or name in left else "count")
        for place, name in enumerate(headings)
    )
    return Listing(columns, lambda row: str(row[0]), empty=empty).table(rows, "once")


def _order(value: Any) -> tuple[int, Any]:
    """Return a sort key that orders missing values first, then numbers, then strings."""
    if value is None:
        return 0, 0
    return (2, value.casefold()) if isinstance(value, str) else (1, value)


# Values -------------------------------------------------------------------------------------------

#: States of tasks in the order in which a bar shows them, and their characters.
_BAR = (
    *(("done", "█"), ("cached", "▓"), ("failed", "x")),
    *(("cancelled", "-"), ("running", "▒"), ("queued", "░"), ("blocked", "·")),
)
BAR_STATES = tuple(state for state, _ in _BAR)
_UNFINISHED = ("running", "queued", "blocked")
#: Width of a bar in terminal cells, if there is room for it.
BAR_WIDTH = 12


def formatted(value: Any, kind: str, now: float = 0.0) -> str:
    """Return a value as a string. ``now`` is the time of the overview, in seconds since 1970."""
    if value is None or value == "":
        return "-"
    if kind == "time":
        return clock(value, now)
    return str(_FORMATS.get(kind, str)(value))


def share_of(parts: Mapping[str, int]) -> float:
    """Return the share of finished tasks."""
    total = sum(parts.values())
    return (total - sum(parts.get(state, 0) for state in _UNFINISHED)) / max(1, total)


def counts_in_words(parts: Mapping[str, int]) -> str:
    """Return the numbers of tasks other than 0, such as ``14 done, 2 running``."""
    told = [f"{count} {state}" for state, count in parts.items() if count]
    return ", ".join(told) or "no tasks"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "duration": format_duration,
    "bytes": format_bytes,
    "money": lambda amount: format_amount(amount, CURRENCY),
    "progress": counts_in_words,
}


def bar(parts: Mapping[str, int], width: int) -> str:
    """Return numbers of tasks by state as a bar of ``width`` characters, empty without tasks."""
    total = sum(parts.values())
    if not total:
        return ""
    cells = {
        state: max(1, round(count * width / total))
        for state, _ in _BAR
        if (count := parts.get(state, 0))
    }
    # Each state that has tasks is visible: the longest part pays for it.
    cells[max(cells, key=cells.__getitem__)] += width - sum(cells.values())
    return "".join(char * cells.get(state, 0) for state, char in _BAR)[:width]


def clock(at: float | None, now: float) -> str:
    """Return an epoch time as time of day, with the date unless it is today. ``-`` for None."""
    if at is None:
        return "-"
    try:
        moment, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)  # noqa: DTZ006
    except (OverflowError, OSError, ValueError):
        return "-"
    pattern = "%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M"
    return moment.strftime(pattern)


def money(amount: float) -> str:
    """Return a cost as a string without its currency."""
    return format_amount(amount, CURRENCY)


# Texts --------------------------------------------------------------------------------------------

ELLIPSIS = "…"
#: Characters of these categories take no cell: marks, and invisible characters.
_MARKS = frozenset({"Mn", "Me"})


def width_of(text: str) -> int:
    """Return the number of terminal cells of a string without control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def fitted(text: object, width: int) -> str:
    """Return a string on one line of at most ``width`` cells, with its middle cut if necessary."""
    line = one_line(text)
    if width_of(line) <= width:
        return line
    if width < 2:
        return ELLIPSIS[:width]
    tail = _taken(line[::-1], (width - 1) // 2)[::-1]
    while tail and unicodedata.category(tail[0]) in _MARKS:
        tail = tail[1:]
    return _taken(line, width - 1 - width_of(tail)) + ELLIPSIS + tail


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a string of exactly ``width`` cells, cut if it is longer."""
    line = fitted(text, width)
    spaces = " " * (width - width_of(line))
    return spaces + line if right else line + spaces


def _cells(char: str) -> int:
    if unicodedata.category(char) in _MARKS:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _taken(text: str, width: int) -> str:
    """Return the longest prefix of a string that takes at most ``width`` cells."""
    taken = 0
    for number, char in enumerate(text):
        taken += _cells(char)
        if taken > width:
            return text[:number]
    return text
