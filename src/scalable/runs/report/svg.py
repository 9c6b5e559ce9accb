"""Primitives of drawings: every string and attribute is escaped, and coordinates are short."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from scalable.runs.report.table import printable, shorten

#: Maximum number of characters of a string in a drawing.
_LONGEST = 300


def element(name: str, *content: Markup | str, **attributes: float | str | None) -> Markup:
    """Return an SVG element.
    Strings in ``content`` are escaped. In attribute names, ``klass`` stands for ``class`` and an
    underscore for a hyphen. None omits an attribute.
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
    """Return a path from its commands, such as ``M0 0`` and ``h5``."""
    inner = () if title is None else (element("title", title),)
    return element("path", *inner, d="".join(data), klass=klass)


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the commands of a rectangle, as a part of a path."""
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


def label(x: float, y: float, content: str, anchor: str = "start") -> Markup:
    """Return a label at a point."""
    return element("text", content, x=x, y=y, text_anchor=anchor)


def drawing(width: float, height: float, name: str, content: Iterable[Markup]) -> Markup:
    """Return a drawing, whose name is for screen readers."""
    return element(
        "svg",
        *content,
        viewBox=f"0 0 {short(width)} {short(height)}",
        role="img",
        aria_label=name,
    )
