"""Plain-text tables of limited width, with aligned columns and shortened names."""

from __future__ import annotations

from collections.abc import Sequence

#: Width of a report in columns.
WIDTH = 100
_INDENT = "  "
_GAP = "  "
_ELLIPSIS = "…"


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = WIDTH
) -> list[str]:
    """Return the indented lines of a table, starting with the header.
    The first column is left-aligned, and shortened if a line would exceed ``width`` (None: no
    limit). The others are right-aligned. None is shown as a dash.
    """
    cells = [["-" if cell is None else str(cell) for cell in line] for line in (header, *rows)]
    lines = [[on_one_line(cell) for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    taken = len(_INDENT) + sum(len(_GAP) + width for width in widths[1:])
    first = widths[0] if width is None else max(1, min(widths[0], width - taken))
    texts = []
    for line in lines:
        name = shorten(line[0], first).ljust(first)
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        texts.append(_INDENT + _GAP.join((name, *rest)))
    return texts


def shorten(text: str, width: int) -> str:
    """Return the string, with its middle cut out if it is longer than ``width`` (at least 1)."""
    if len(text) <= width:
        return text
    head = width // 2
    tail = width - head - len(_ELLIPSIS)
    return text[:head] + _ELLIPSIS + text[len(text) - tail :]


def on_one_line(text: str) -> str:
    """Replace unprintable characters by ``?``, since they could move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def printable(text: str) -> str:
    """Replace unprintable characters except line breaks and tabs by ``?``."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
