"""Tables with a key for each row, and columns that can be sorted by value."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from scalable.model.costs import CURRENCY
from scalable.units import format_amount

_GAP = "  "
_INDENT = "  "
#: Minimum width to which a column with text is shortened.
_LEAST = 8


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    #: True if its cells are numbers, which are aligned to the right and never shortened.
    number: bool = False
    #: Maximum width of its texts in terminal cells, or None for no limit.
    width: int | None = None


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


@dataclass(frozen=True)
class Table:
    """Rows under column titles."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(default=())
    #: Text that is shown for a table without rows.
    empty: str = "nothing"

    def sorted(self, title: str, *, reverse: bool = False) -> Self:
        """Return the table sorted by the column with this title, or unchanged if there is none."""
        titles = [column.title for column in self.columns]
        if title not in titles:
            return self
        place = titles.index(title)
        rows = sorted(self.rows, key=lambda row: _order(row.values[place]), reverse=reverse)
        return replace(self, rows=tuple(rows))

    def containing(self, text: str) -> Self:
        """Return the table with only the rows that contain a string, ignoring case."""
        wanted = text.casefold().strip()
        if not wanted:
            return self
        rows = (row for row in self.rows if wanted in " ".join(row.cells).casefold())
        return replace(self, rows=tuple(rows))

    def of_pool(self, tag: str | None) -> Self:
        """Return the table with only the rows of one pool, or all rows for None."""
        if tag is None:
            return self
        return replace(self, rows=tuple(row for row in self.rows if row.pool == tag))

    def first(self, count: int) -> Self:
        return replace(self, rows=self.rows[:count])

    @property
    def width(self) -> int:
        """Number of cells in an unshortened line."""
        widths = self._whole_widths()
        return len(_INDENT) + sum(widths) + len(_GAP) * (len(widths) - 1)

    def widths(self, width: int, gap: int) -> list[int]:
        """Return column widths for lines of ``width`` cells. Number columns are never shortened."""
        widths = self._whole_widths()
        room = width - gap * (len(widths) - 1)
        while sum(widths) > room:
            texts = [
                place
                for place, column in enumerate(self.columns)
                if not column.number and widths[place] > _LEAST
            ]
            if not texts:
                break
            widths[max(texts, key=widths.__getitem__)] -= 1
        return widths

    def _whole_widths(self) -> list[int]:
        widths = []
        for place, column in enumerate(self.columns):
            cells = [column.title, *(row.cells[place] for row in self.rows)]
            widest = max(map(width_of, cells))
            widths.append(widest if column.width is None else min(widest, column.width))
        return widths

    def lines(self, width: int) -> list[str]:
        """Return the table as lines of at most ``width`` cells, starting with the titles."""
        titles = tuple(column.title for column in self.columns)
        texts = [titles, *(row.cells for row in self.rows)]
        widths = self.widths(width - len(_INDENT), len(_GAP))
        lines = []
        for cells in texts:
            parts = [
                padded(cell, wide, right=column.number)
                for cell, wide, column in zip(cells, widths, self.columns, strict=True)
            ]
            lines.append((_INDENT + _GAP.join(parts)).rstrip())
        return lines


def row(
    key: str, values: Sequence[Any], texts: Sequence[object], *, pool: str | None = None
) -> Row:
    """Return a row whose cells are harmless to a terminal."""
    return Row(key, tuple(map(one_line, texts)), tuple(values), pool)


def _order(value: Any) -> tuple[int, Any]:
    """Return a sort key that orders missing values first, then numbers, then strings."""
    if value is None:
        return 0, 0
    return (2, value.casefold()) if isinstance(value, str) else (1, value)


# Texts --------------------------------------------------------------------------------------------

ELLIPSIS = "…"
#: Replaces a character that would move the cursor, colour the text or change its direction.
REPLACED = "\ufffd"
#: Maximum number of combining marks that are kept on one character.
LONGEST_MARKS = 3
#: Number of characters of a string that are read. The rest is cut off.
READ_CHARACTERS = 4_000
_SPACES = re.compile(r"\s+")
#: Characters of these categories take no cell: marks, and invisible characters.
_MARKS = frozenset({"Mn", "Me"})
_CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def one_line(text: object) -> str:
    """Return a string on one line, without control characters and direction marks.
    Right-to-left letters stay. Whitespace is collapsed. Only ``READ_CHARACTERS`` are read.
    """
    read = _SPACES.sub(" ", str(text)[: 2 * READ_CHARACTERS]).strip(" ")[:READ_CHARACTERS]
    if read.isascii() and read.isprintable():
        return read
    kept, marks = [], 0
    for char in read:
        category = unicodedata.category(char)
        marks = marks + 1 if category in _MARKS else 0
        if marks <= LONGEST_MARKS:
            kept.append(REPLACED if category in _CONTROLS else char)
    return "".join(kept)


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
