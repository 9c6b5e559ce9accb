"""The `impacts` component: what is known of the warming, as percentiles, a table and a picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PERCENTILES = (5, 17, 50, 83, 95)
COLUMNS = tuple(f"p{percentile:02}" for percentile in PERCENTILES)

# As in the fifth assessment report of the IPCC; they stay apart for colour-blind readers.
COLOURS = ("#003466", "#3d85c6", "#c47900", "#990002")
FIRST_YEAR_SHOWN = 1950
LAST_COMMON_YEAR = 2005  # until then all pathways hold the same historical emissions


def percentiles(batches: Sequence[np.ndarray]) -> np.ndarray:
    """Reduce the batches of one scenario.

    Parameters
    ----------
    batches
        Arrays of shape (members, years); together they are the ensemble.

    Returns
    -------
    ndarray of shape (percentiles, years)
        A row for each of PERCENTILES.
    """
    return np.percentile(np.concatenate(batches), PERCENTILES, axis=0)


def write_results(
    summaries: Mapping[str, np.ndarray], years: np.ndarray, directory: str
) -> dict[str, object]:
    """Write the table and the plot.

    Parameters
    ----------
    summaries
        Scenario -> what `percentiles` returned.
    years
        The years of its columns.
    directory
        Where the files go; made if it does not exist.

    Returns
    -------
    dict
        Paths `csv` and `png`; `headline` holds (scenario, p05, p50, p95) of the last year.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    table, plot = folder / "warming.csv", folder / "warming.png"
    write_csv(table, summaries, years)
    write_plot(plot, summaries, years)
    headline = []
    for scenario, rows in summaries.items():
        lowest, _, middle, _, highest = rows[:, -1].tolist()
        headline.append((scenario, lowest, middle, highest))
    return {"csv": str(table), "png": str(plot), "headline": headline}


def write_csv(path: Path, summaries: Mapping[str, np.ndarray], years: np.ndarray) -> None:
    """Write a row for each scenario and year: the percentiles of warming in K."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("scenario", "year", *COLUMNS))
        for scenario, rows in summaries.items():
            for year, values in zip(years, rows.T, strict=True):
                writer.writerow((scenario, year, *(f"{value:.4f}" for value in values)))


def write_plot(path: Path, summaries: Mapping[str, np.ndarray], years: np.ndarray) -> None:
    """Draw a panel with the plume of each scenario, and the medians of the others behind it."""
    # A figure that is made this way draws with Agg: it needs neither a display nor pyplot.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, len(summaries), sharey=True, squeeze=False)[0]
    shown = years >= FIRST_YEAR_SHOWN
    for place, (panel, scenario) in enumerate(zip(panels, summaries, strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        for other in summaries.values():
            panel.plot(years[shown], other[2, shown], color="#b0b0b0", linewidth=1, zorder=1)
        _draw_plume(panel, years[shown], summaries[scenario][:, shown], colour)
        panel.set_title(scenario, loc="left", color=colour, weight="bold")
        panel.set_xlim(FIRST_YEAR_SHOWN, years[-1])
        panel.set_xticks([1950, 2000, 2050, 2100])
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.tick_params(left=False)
        panel.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("Warming since 1765 (K)")
    figure.suptitle("FaIR: global mean surface warming", x=0.01, ha="left", weight="bold")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    figure.get_layout_engine().set(wspace=0.06)
    figure.savefig(path, dpi=150)


def _draw_plume(panel: Axes, years: np.ndarray, rows: np.ndarray, colour: str) -> None:
    """Bands and median: in grey while the emissions are history, then in colour."""
    for part, tint in ((years <= LAST_COMMON_YEAR, "#4d4d4d"), (years >= LAST_COMMON_YEAR, colour)):
        lowest, low, middle, high, highest = rows[:, part]
        panel.fill_between(years[part], lowest, highest, color=tint, alpha=0.2, linewidth=0)
        panel.fill_between(years[part], low, high, color=tint, alpha=0.35, linewidth=0)
        panel.plot(years[part], middle, color=tint, linewidth=2.2, zorder=3)
    lowest, _, middle, _, highest = rows[:, -1]
    panel.text(
        0.04,
        0.96,
        f"{years[-1]}: {middle:.1f} K\n({lowest:.1f} to {highest:.1f})",
        transform=panel.transAxes,
        color=colour,
        va="top",
        bbox={"facecolor": "white", "linewidth": 0, "pad": 1.5},  # keeps the grid off the text
    )


def _legend() -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dark = "#4d4d4d"
    return [
        Line2D([], [], color=dark, linewidth=2.2, label="median"),
        Patch(color=dark, alpha=0.5, linewidth=0, label="17 to 83 %"),
        Patch(color=dark, alpha=0.2, linewidth=0, label="5 to 95 %"),
        Line2D([], [], color="#b0b0b0", linewidth=1, label="medians of the other scenarios"),
    ]
