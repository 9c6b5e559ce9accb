#!/usr/bin/env python3
"""Draw a figure for benchmarks/results: throughput and latency over the number of workers, as SVG.

    python scripts/scale_figure.py FIGURE.svg MEASURES.json [MEASURES.json ...]

The measures are those that ``benchmarks/scale.py --json`` writes.
"""

import json
import math
import sys
from html import escape
from pathlib import Path

#: Lines of each panel: label, system, way of sending calls, colour.
LINES = [
    ("scalable, executor", "ours", "executor", "#0072b2"),
    ("scalable, submit", "ours", "submit", "#56b4e9"),
    ("Dask, submit", "dask", "submit untagged", "#d55e00"),
    ("Dask, submit with resources", "dask", "submit", "#e69f00"),
]
PANELS = [
    ("calls a second", lambda m: m["calls"] / m["wall_s"]),
    ("first result, ms", lambda m: 1e3 * m["first_s"]),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 240, 60, 30, 70


def rows(points, system, way, value):
    """Return pairs of workers and value, in order of workers."""
    found = {
        point["workers"]: value(point["calls"][way])
        for point in points
        if point["system"] == system and way in point.get("calls", {})
    }
    return sorted(found.items())


def decades(values):
    """Return the powers of ten around values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def panel(points, left, title, value):
    """Return the elements of one panel, with logarithmic axes."""
    drawn = [(rows(points, system, way, value), colour) for _, system, way, colour in LINES]
    xs, ys = ([pair[i] for found, _ in drawn for pair in found] for i in (0, 1))
    x_low, x_high = decades(xs)
    y_low, y_high = decades(ys)

    def place(workers, amount):
        x = left + WIDTH * (math.log10(workers) - x_low) / (x_high - x_low)
        y = TOP + HEIGHT * (1 - (math.log10(amount) - y_low) / (y_high - y_low))
        return f"{x:.1f},{y:.1f}"

    yield f'<text x="{left}" y="{TOP - 10}" font-weight="bold">{escape(title)}</text>'
    for power in range(x_low, x_high + 1):
        x = place(10**power, 10**y_low).partition(",")[0]
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#ddd"/>'
        yield f'<text x="{x}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{10**power:,}</text>'
    for power in range(y_low, y_high + 1):
        y = place(10**x_low, 10**power).partition(",")[2]
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
        yield f'<text x="{left - 6}" y="{y}" text-anchor="end">{10**power:,g}</text>'
    for found, colour in drawn:
        path = " ".join(place(*pair) for pair in found)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for pair in found:
            x, y = place(*pair).split(",")
            yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


def figure(points):
    """Return the figure as SVG."""
    width = 2 * (LEFT + WIDTH) + GAP
    parts = []
    for number, (title, value) in enumerate(PANELS):
        parts += panel(points, LEFT + number * (LEFT + WIDTH + GAP // 2), title, value)
    for number, (label, _, _, colour) in enumerate(LINES):
        x, y = LEFT + 210 * number, TOP + HEIGHT + 48
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(label)}</text>')
    parts.append(f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 28}">workers</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 60}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
        f'fill="white"/>\n{body}\n</svg>\n'
    )


def main():
    """Draw the figure from the measures of the command line."""
    points = [point for name in sys.argv[2:] for point in json.loads(Path(name).read_text())]
    Path(sys.argv[1]).write_text(figure(points))


if __name__ == "__main__":
    main()
