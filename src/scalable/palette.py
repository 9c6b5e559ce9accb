"""Colours of task names in reports and on the dashboard, distinct for the colour-blind.
Source: scheme "muted" of Paul Tol (https://personal.sron.nl/~pault/), lighter on dark pages.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

#: Rose, indigo, sand, green, cyan, wine, teal, olive and purple on a light and on a dark page.
LIGHT = (
    "#cc6677", "#332288", "#ddcc77", "#117733", "#88ccee",
    "#882255", "#44aa99", "#999933", "#aa4499",
)  # fmt: skip
DARK = (
    "#e07a8b", "#7a6be0", "#ddcc77", "#2f9e52", "#88ccee",
    "#b8437f", "#55c2b0", "#a8a83d", "#c964b8",
)  # fmt: skip
#: Colour of everything without a name, on a light and on a dark page.
OTHER = ("#9a9a9a", "#7d7d7d")


def number_of(name: str) -> int:
    """Return a task name's colour index. Several names may have the same one."""
    return zlib.crc32(name.encode(errors="replace")) % len(LIGHT)


def numbers_of(names: Iterable[str]) -> dict[str, int]:
    """Map task names to colour indices, distinct as long as there are enough colours.
    A name keeps its own :func:`number_of` unless an alphabetically earlier name has that index.
    """
    ordered = sorted(set(names))
    if len(ordered) > len(LIGHT):
        return {name: number_of(name) for name in ordered}
    taken: dict[int, str] = {}
    for name in ordered:
        taken.setdefault(number_of(name), name)
    found = {name: number for number, name in taken.items()}
    free = iter([number for number in range(len(LIGHT)) if number not in taken])
    for name in ordered:
        if name not in found:
            found[name] = next(free)
    return found


def css_variables() -> str:
    """Return CSS rules that define ``--task-0``, ... and ``--task-other`` for both themes."""

    def rules(colours: Iterable[str], other: str) -> str:
        named = [f"--task-{number}:{colour}" for number, colour in enumerate(colours)]
        return ";".join([*named, f"--task-other:{other}"])

    light, dark = OTHER
    return (
        f":root{{{rules(LIGHT, light)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{rules(DARK, dark)}}}}}\n"
    )
