"""Colours of task names: stable, and different for people who confuse some colours."""

import itertools
import math
import re
from importlib.resources import files

import pytest

from scalable import palette

# Simulation of full protanopia and deuteranopia in linear RGB (Machado and others, 2009).
KINDS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
}
#: Distance in CIE Lab below which two areas look alike.
DISTINCT = 10.0


def lab(colour, kind):
    """Return a colour as somebody with a kind of colour blindness sees it, in CIE Lab (D65)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    r, g, b = (
        min(1, max(0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in KINDS[kind]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_two_colours_look_alike(colours, kind):
    seen = {colour: lab(colour, kind) for colour in colours}
    for one, other in itertools.combinations(colours, 2):
        assert math.dist(seen[one], seen[other]) >= DISTINCT, (one, other)


def test_a_name_keeps_its_colour_whatever_the_order_and_the_other_names():
    names = [f"task-{n}" for n in range(len(palette.LIGHT))]
    numbers = palette.numbers_of(names)
    assert sorted(numbers.values()) == list(range(len(palette.LIGHT)))
    assert palette.numbers_of(reversed(names)) == numbers
    assert all(palette.numbers_of([name]) == {name: palette.number_of(name)} for name in names)


def test_more_names_than_colours_share_them():
    numbers = palette.numbers_of(f"{n}\ud800" for n in range(1000))
    assert set(numbers.values()) == set(range(len(palette.LIGHT)))


def test_the_style_names_each_colour_for_both_themes():
    style = palette.css_variables()
    assert all(colour in style for colour in (*palette.LIGHT, *palette.DARK, *palette.OTHER))


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    """Return the contrast of two colours as in WCAG 2.2."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_failed_tasks_and_states_stand_out_on_the_page(theme):
    style = (files("scalable.views") / "static" / "page.css").read_text()
    own = [dict(re.findall(r"--(\w+): (#\w+)", part)) for part in style.split("@media")[:2]][theme]
    # A failed task is hatched in this colour on the panel, not on its task's colour.
    for ground in (own["panel"], own["page"]):
        assert contrast(own["bad"], ground) >= 3
        assert contrast(own["blocked"], ground) >= 3
    for state in ("bad", "warn", "good", "dim", "link"):
        assert contrast(own[state], own["page"]) >= 4.5, state
