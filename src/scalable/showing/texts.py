"""Strings from outside the program, fitted into the cells of a terminal."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

from scalable.spec.costs import CURRENCY
from scalable.units import format_amount

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

    Letters of right-to-left scripts stay: they are what the user wrote. Whitespace is joined, and a
    long string is cut off after ``READ_CHARACTERS``.
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
    """Return a string on one line of at most ``width`` cells. Its middle is cut out if need be."""
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
    """Return an epoch time as time of day, with its date unless it is today, or ``-`` for None."""
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
