"""Text of limited width: aligned columns and shortened names."""

from __future__ import annotations

from collections.abc import Sequence

#: Width of a report in columns.
WIDTH = 100
_INDENT = "  "
_GAP = "  "
_ELLIPSIS = "…"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows below a header, within :data:`WIDTH` columns.

    Parameters
    ----------
    header
        Titles of the columns.
    rows
        Rows with one text for each column. The first column is aligned to the left and is shortened
        if the table is too wide; the others are aligned to the right.

    Returns
    -------
    list
        Indented lines, beginning with the header.
    """
    lines = [[on_one_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    taken = len(_INDENT) + sum(len(_GAP) + width for width in widths[1:])
    first = max(1, min(widths[0], WIDTH - taken))
    texts = []
    for line in lines:
        name = shorten(line[0], first).ljust(first)
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        texts.append(_INDENT + _GAP.join((name, *cells)))
    return texts


def shorten(text: str, width: int) -> str:
    """Cut the middle out of a text longer than ``width`` columns (at least 1)."""
    if len(text) <= width:
        return text
    head = width // 2
    tail = width - head - len(_ELLIPSIS)
    return text[:head] + _ELLIPSIS + text[len(text) - tail :]


def on_one_line(text: str) -> str:
    """Replace characters that would move the cursor or colour a terminal with ``?``."""
    return "".join(char if char.isprintable() else "?" for char in text)
