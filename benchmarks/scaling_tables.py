"""Tables and verdicts of the scaling benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean

from scaling_cells import CONTENDERS, Cell

#: Bars on the nine workloads: geometric means, worst cell, dominated share, worse than Dask's.
NINE_BARS = {"warm": 1.10, "cold": 1.15, "worst": 1.35, "dominated": 0.05, "dask": 1.02}
#: Bars elsewhere, cold.
BARS = {"all": 1.10, "beside": 1.005, "worst": 1.5, "dominated": 0.05}


def mean(cells: Iterable[Cell]) -> float:
    """Return the geometric mean of the scores."""
    scores = [cell.score for cell in cells]
    return geometric_mean(scores) if scores else math.nan


def show_scores(
    title: str, cells: Sequence[Cell], column: Callable[[Cell], str], policies: Sequence[str]
) -> None:
    """Print, for each start-up, the geometric means of each policy in each column."""
    columns = list(dict.fromkeys(column(cell) for cell in cells))
    for startup_s in sorted({cell.startup_s for cell in cells}):
        here = [cell for cell in cells if cell.startup_s == startup_s]
        print(f"\n{title}, start-up {startup_s:g} s: score, geometric means")
        heads = (name.removeprefix("wf-")[:11] for name in columns)
        print(f"{'':14s}" + "".join(f"{name:>12s}" for name in heads) + f"{'all':>8s}{'worst':>8s}")
        for name in policies:
            mine = [c for c in here if c.policy == name]
            if not mine:
                continue
            by = [mean(c for c in mine if column(c) == each) for each in columns]
            print(f"{name:14s}" + "".join(f"{score:12.2f}" for score in by), end="")
            print(f"{mean(mine):8.3f}{max(c.score for c in mine):8.2f}")


def show_summary(cells: Sequence[Cell], policies: Sequence[str]) -> None:
    """Print the means of each policy over all cells."""
    print("\nall of them")
    heads = ("score", "worst", "dominated", "changes", "ms/look")
    widths = (8, 8, 12, 9, 9)
    print(f"{'':14s}" + "".join(f"{h:>{w}s}" for h, w in zip(heads, widths, strict=True)))
    for name in policies:
        mine = [c for c in cells if c.policy == name]
        if not mine:
            continue
        print(
            f"{name:14s}{mean(mine):8.3f}{max(c.score for c in mine):8.2f}"
            f"{sum(c.dominated for c in mine):6d}/{len(mine):<5d}"
            f"{sum(c.changes for c in mine) / len(mine):9.0f}"
            f"{sum(c.look_ms for c in mine) / len(mine):9.3f}"
        )


def show_bars_of_nine(cells: Sequence[Cell]) -> None:
    """Print the verdicts on the nine workloads."""
    print("\nbars on the nine workloads")
    dask = {c.place: c.score for c in cells if c.policy == "dask-adaptive" and c.startup_s == 1.0}
    for name, bar in (("ours-warm", NINE_BARS["warm"]), ("ours-cold", NINE_BARS["cold"])):
        mine = [c for c in cells if c.policy == name]
        if not mine:
            continue
        verdict(f"{name}: geometric mean", mean(mine), bar)
        worst = max(mine, key=lambda c: c.score)
        verdict(f"{name}: worst cell ({_named(worst)})", worst.score, NINE_BARS["worst"])
        verdict(f"{name}: share of dominated cells", _dominated(mine), NINE_BARS["dominated"])
        ratios = {c: c.score / dask[c.place] for c in mine if c.place in dask}
        if ratios:
            cell = max(ratios, key=lambda c: ratios[c])
            verdict(f"{name}: beside Dask ({_named(cell)})", ratios[cell], NINE_BARS["dask"])


def show_bars(title: str, mine: Sequence[Cell], cells: Sequence[Cell]) -> None:
    """Print the verdicts on cells of the policy, beside all cells of the others."""
    if not mine:
        return
    print(f"\nbars: {title}")
    verdict("geometric mean", mean(mine), BARS["all"])
    places = {cell.place for cell in mine}
    for startup_s in sorted({cell.startup_s for cell in mine}):
        here = [c for c in mine if c.startup_s == startup_s]
        others = {
            name: mean(
                c
                for c in cells
                if c.policy == name and c.place in places and c.startup_s == startup_s
            )
            for name, contender in CONTENDERS.items()
            if not contender.ours and any(c.policy == name for c in cells)
        }
        if others:
            best = min(others, key=lambda name: others[name])
            what = f"start-up {startup_s:g} s: {mean(here):.3f} beside {best}'s {others[best]:.3f}"
            verdict(what, mean(here) / others[best], BARS["beside"])
    worst = max(mine, key=lambda c: c.score)
    verdict(f"worst cell ({_named(worst)})", worst.score, BARS["worst"])
    verdict("share of dominated cells", _dominated(mine), BARS["dominated"])


def show_worst(cells: Sequence[Cell], count: int = 8) -> None:
    """Print the worst cells, and the dominated ones."""
    print("\nworst cells")
    for cell in sorted(cells, key=lambda c: -c.score)[:count]:
        print(f"  {cell.score:6.2f}  {_named(cell)}")
    print("dominated cells")
    for cell in sorted((c for c in cells if c.dominated), key=lambda c: -c.score):
        print(f"  {cell.score:6.2f}  {_named(cell)}")


def _dominated(cells: Sequence[Cell]) -> float:
    return sum(cell.dominated for cell in cells) / len(cells)


def _named(cell: Cell) -> str:
    return f"{cell.case}, {cell.startup_s:g} s, seed {cell.seed}"


def verdict(what: str, reached: float, bar: float) -> None:
    """Print whether a bar is met."""
    print(f"  {'met   ' if reached <= bar else 'MISSED'} {what}: {reached:.3f} (bar {bar:g})")
