"""Stated confidence and intervals of plans beside simulated outcomes.

::

    python benchmarks/calibration.py DIRECTORY
    python benchmarks/calibration.py DIRECTORY --each 30 --seed 7

DIRECTORY contains traces in WfFormat 1.5; without it only generated graphs are planned. The cases
are those of ``calibration_cases.py``.

Nothing is fitted to the traces. What no trace tells, since each was recorded once, is assumed: the
variation from run to run, and how often programs wait for whole tasks.

The reliability table has the mean stated confidence and the share of runs that took 0.8 to 1.25
times the predicted time, with its standard error, for five bins of confidence; coverage is the
share of runs in the stated 80 % interval. Runs of one workload resemble each other, so that the
true errors are larger.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from calibration_cases import KINDS, Case, case, generated, traces

BINS = 5
#: Number of runs below which a bin or a group is too small to be judged.
FEW = 20


def recorded(directory: Path, each: int, seed: int) -> list[Case]:
    """Return ``each`` cases of each trace and kind."""
    made = [
        case(family, kind, workload, f"{seed} {workload.name} {number} {kind}")
        for family, workload in traces(directory)
        for number in range(each)
        for kind in KINDS
    ]
    return [one for one in made if one is not None]


def of_graphs(each: int, seed: int) -> list[Case]:
    """Return the cases of ``each`` random graphs."""
    chance = random.Random(seed)
    work = [generated(chance) for _ in range(each)]
    made = [
        case(family, kind, workload, f"{seed} {place} {kind}")
        for place, (family, workload) in enumerate(work)
        for kind in KINDS
    ]
    return [one for one in made if one is not None]


def table(title: str, shown: Sequence[Case]) -> None:
    """Print the reliability table and the coverage."""
    print(f"\n{title}: {len(shown)} runs")
    if not shown:
        return
    print("  confidence  runs  stated  held")
    for number in range(BINS):
        found = [c for c in shown if min(BINS - 1, int(c.confidence * BINS)) == number]
        if found:
            stated, held = fmean(c.confidence for c in found), fmean(c.held for c in found)
            mark = "  off by more than 0.1" if abs(stated - held) > 0.1 else ""
            mark += "  few" if len(found) < FEW else ""
            low, high, error = number / BINS, (number + 1) / BINS, _error(held, len(found))
            print(
                f"  {low:.1f} to {high:.1f}  {len(found):4}    {stated:.2f}  "
                f"{held:.2f} +- {error:.2f}{mark}"
            )
    print(f"  {coverage(shown)}")


def coverage(shown: Sequence[Case]) -> str:
    """Return how many intervals hold, how wide they are, and how good the predictions are."""
    inside = fmean(c.inside for c in shown)
    below = fmean(c.actual_s < c.interval_s[0] for c in shown)
    above = fmean(c.actual_s > c.interval_s[1] for c in shown)
    width = math.exp(fmean(math.log(c.interval_s[1] / c.interval_s[0]) for c in shown))
    bias = math.exp(fmean(math.log(c.actual_s / c.predicted_s) for c in shown))
    few = ", few" if len(shown) < FEW else ""
    return (
        f"80 % intervals hold in {100 * inside:.0f} +- {100 * _error(inside, len(shown)):.0f} % "
        f"(below {100 * below:.0f}, above {100 * above:.0f}{few}); "
        f"high / low {width:.2f}; actual / predicted {bias:.2f}"
    )


def _error(share: float, count: int) -> float:
    """Return the standard error of a share, which is not 0 if all or none of few cases hold."""
    smoothed = (share * count + 1) / (count + 2)
    return math.sqrt(smoothed * (1 - smoothed) / count)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", nargs="?", type=Path, help="traces in WfFormat 1.5")
    parser.add_argument("--each", type=int, default=10, help="cases of each trace and kind")
    parser.add_argument("--graphs", type=int, default=100, help="generated graphs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.perf_counter()
    real = [] if given.directory is None else recorded(given.directory, given.each, given.seed)
    graphs = of_graphs(given.graphs, given.seed)
    for kind in KINDS:
        table(f"traces, {kind}", [c for c in real if c.kind == kind])
        table(f"generated graphs, {kind}", [c for c in graphs if c.kind == kind])
    found = [*real, *graphs]
    print("\neach family")
    for family in sorted({c.family for c in found}):
        shown = [c for c in found if c.family == family]
        print(f"  {family:12} {len(shown):3} runs: {coverage(shown)}")
    table("traces", real)
    table("generated graphs", graphs)
    table("all", found)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
