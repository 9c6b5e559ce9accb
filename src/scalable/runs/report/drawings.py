"""Drawings of a report: timeline, utilisation, distributions. The style sheet sets colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup, escape

from scalable.runs.report.histograms import BARS, Histogram
from scalable.runs.report.table import printable, shorten
from scalable.runs.report.timeline import COLUMNS, Block, Decision, Timeline, TimelineRow
from scalable.runs.report.usage import POINTS, PoolUse
from scalable.units import format_duration

_LEFT, _TOP, _BOTTOM = 130, 26, 22
#: Width of a timeline's column in SVG units.
_COLUMN = 2
_WIDTH = _LEFT + COLUMNS * _COLUMN + 10
#: Maximum number of characters of a row's name.
_NAME = 20
#: Maximum number of marked scaling decisions.
_MARKS = 200
_TICKS = 6
#: Height of a row, and maximum number of rows of the larger height.
_THICK, _THIN, _THICK_ROWS = 14, 9, 32


def draw_timeline(timeline: Timeline) -> Markup:
    """Return the drawing of a timeline."""
    thick = _THICK if len(timeline.rows) <= _THICK_ROWS else _THIN
    height = _TOP + thick * len(timeline.rows) + _BOTTOM
    parts = [*_axis(timeline.end - timeline.begin, _TOP, height - _BOTTOM)]
    for place, row in enumerate(timeline.rows):
        parts += _row(row, _TOP + place * thick, thick)
    parts += _marks(timeline.decisions, height - _BOTTOM)
    return drawing(_WIDTH, height, "Workers over time, coloured by task name", parts)


def _axis(seconds: float, top: float, bottom: float) -> Iterator[Markup]:
    for tick in range(_TICKS + 1):
        x = _LEFT + COLUMNS * _COLUMN * tick / _TICKS
        yield path([f"M{x:.1f} {top}V{bottom}"], "grid")
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        yield label(x, bottom + 14, format_duration(seconds * tick / _TICKS), anchor)


def _row(row: TimelineRow, y: float, thick: float) -> Iterator[Markup]:
    yield element(
        "text",
        element("title", f"{row.tag}: {row.name}"),
        shorten(row.name if row.workers == 1 else f"{row.tag}: {row.name}", _NAME),
        x=_LEFT - 6,
        y=y + thick - 3,
        text_anchor="end",
        klass="row" if thick >= _THICK else "row thin",
    )
    yield path((box(_x(b), y + thick / 2 - 1, w * _COLUMN, 2) for b, w in row.present), "here")
    titled = [block for block in row.blocks if block.title is not None]
    for block in titled:
        width = max(0.6, block.width * _COLUMN)
        yield rectangle(_x(block.begin), y + 1, width, thick - 2, _class(block), block.title)
    kinds: dict[str, list[str]] = {}
    for block in row.blocks:
        if block.title is None:
            part = box(_x(block.begin), y + 1, block.width * _COLUMN, thick - 2)
            kinds.setdefault(_class(block), []).append(part)
    for kind, data in kinds.items():
        yield path(data, kind)
    cross = "m-3-3l6 6m0-6l-6 6"
    middle = y + thick / 2
    if row.failures:
        yield path((f"M{_x(at):.0f} {middle}{cross}" for at in row.failures), "bad", "failed tasks")
    if row.losses:
        bar = f"v{thick - 2}"
        yield path((f"M{_x(at):.0f} {y + 1}{bar}" for at in row.losses), "lost", "worker lost")


def _class(block: Block) -> str:
    return f"f{block.colour} s{block.shade}"


def _x(column: float) -> float:
    return _LEFT + column * _COLUMN


def _marks(decisions: Sequence[Decision], bottom: float) -> Iterator[Markup]:
    for made in decisions[-_MARKS:]:
        x = _x(made.at)
        shape = "l4 8h-8z" if made.grows else "m-4 0h8l-4 8z"
        title = f"{made.tag}: {made.before} to {made.after} ({made.source})\n{made.reason}"
        yield path([f"M{x:.1f} {_TOP}V{bottom:.0f}"], "decided")
        yield path([f"M{x:.1f} {_TOP - 12}{shape}"], "mark", title)


def draw_use(use: PoolUse, seconds: float) -> Markup:
    """Return the drawing of a pool's connected and busy workers over time."""
    width, height, top = 480, 70, 8
    most = max([1.0, *use.connected])

    def area(values: Sequence[float]) -> str:
        step = width / POINTS
        points = "".join(
            f"V{top + (1 - min(1.0, value / most)) * (height - top):.1f}h{step:.1f}"
            for value in values
        )
        return f"M0 {height}{points}V{height}z"

    parts = [
        path([area(use.connected)], "connected", "connected workers"),
        path([area(use.busy)], "busy", "workers with tasks"),
        label(2, height + 13, "0 s"),
        label(width, height + 13, format_duration(seconds), "end"),
    ]
    return drawing(width, height + 18, f"Workers of {shorten(use.tag, 90)} over time", parts)


def draw_histogram(histogram: Histogram, reserved: float | None = None) -> Markup:
    """Return the drawing of a distribution, with a line at the reserved amount if given."""
    width, height = 168, 36
    most = max(histogram.counts) or 1
    step = width / BARS
    bars = [
        box(i * step, height - tall, step - 1, tall)
        for i, count in enumerate(histogram.counts)
        if count
        for tall in (max(1.0, height * count / most),)
    ]
    parts = [path(bars, "bar")]
    for value, kind, title in (
        (histogram.median, "median", "median"),
        (reserved, "limit", "reserved"),
    ):
        place = None if value is None else histogram.place(value)
        if place is not None and 0 <= place <= 1:
            parts.append(path([f"M{place * width:.1f} 0V{height}"], kind, title))
    return drawing(width, height, f"Distribution of {sum(histogram.counts)} values", parts)


# Primitives of drawings: every string and attribute is escaped, and coordinates a -----------------


#: Maximum number of characters of a string in a drawing.
_LONGEST = 300


def element(name: str, *content: Markup | str, **attributes: float | str | None) -> Markup:
    """Return an SVG element with escaped strings.
    In attribute names, ``klass`` means ``class`` and ``_`` means ``-``. None is omitted.
    """
    written = "".join(
        f' {_attribute(key)}="{escape(printable(short(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(_clean(part)) for part in content)
    return Markup(f"<{name}{written}>{inner}</{name}>")  # noqa: S704 - all parts are escaped


def _attribute(key: str) -> str:
    return "class" if key == "klass" else key.replace("_", "-")


def _clean(part: Markup | str) -> Markup | str:
    return part if isinstance(part, Markup) else shorten(printable(part), _LONGEST)


def short(value: float | str) -> str:
    """Return a number with at most one decimal, or a string as it is."""
    return value if isinstance(value, str) else f"{value:.1f}".rstrip("0").rstrip(".")


def rectangle(
    x: float, y: float, width: float, height: float, klass: str, title: str | None = None
) -> Markup:
    """Return a rectangle with an optional tooltip."""
    inner = () if title is None else (element("title", title),)
    return element("rect", *inner, x=x, y=y, width=width, height=height, klass=klass)


def path(data: Iterable[str], klass: str, title: str | None = None) -> Markup:
    """Return an SVG path with these commands, such as ``M0 0`` and ``h5``."""
    inner = () if title is None else (element("title", title),)
    return element("path", *inner, d="".join(data), klass=klass)


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the SVG path commands of a rectangle."""
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


def label(x: float, y: float, content: str, anchor: str = "start") -> Markup:
    """Return a label at a point."""
    return element("text", content, x=x, y=y, text_anchor=anchor)


def drawing(width: float, height: float, name: str, content: Iterable[Markup]) -> Markup:
    """Return an SVG drawing with a name for screen readers."""
    return element(
        "svg",
        *content,
        viewBox=f"0 0 {short(width)} {short(height)}",
        role="img",
        aria_label=name,
    )
