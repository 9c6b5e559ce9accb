"""Time and cost of scaling policies, beside a schedule made with the truth.

::

    python benchmarks/scaling.py --traces DIRECTORY
    python benchmarks/scaling.py --traces DIRECTORY --groups traces --policies ours-cold --quick

Simulated. The score of a cell (workload, start-up, seed) is the square root of time times cost over
that of the clairvoyant schedule (``simulation/reference.py``). There are three groups of
workloads: nine that were known while the policy was made; recorded traces, which are documents in
WfFormat in a directory (for example from github.com/wfcommons/WfInstances); and generated graphs.
Policies run cold there: they know no running times and not how long workers take to start.

Four of the nine workloads are graphs that wfcommons generates: ``pip install wfcommons``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from scaling_cells import CONTENDERS, STARTUPS, Cell, Run, all_cells, marked
from scaling_tables import show_bars, show_bars_of_nine, show_scores, show_summary, show_worst
from scaling_workloads import RECIPES, Case, generated, nine, traces

GROUPS = ("nine", "traces", "traces in two pools", "generated")


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Return the chosen workloads, without those that cannot be made here."""
    cases = nine() + generated()
    if options.traces is not None:
        cases += traces(options.traces)
        if not any(case.group == "traces" for case in cases):
            sys.exit(f"{options.traces} has no document in WfFormat (*.json)")
    if find_spec("wfcommons") is None:
        print("without the graphs of wfcommons: pip install wfcommons", file=sys.stderr)
        cases = [case for case in cases if case.name not in RECIPES]
    elif options.quick:
        cases = [case for case in cases if case.name not in RECIPES]
    return [c for c in cases if c.group in options.groups and options.only in c.name]


def runs_of(options: argparse.Namespace, cases: Sequence[Case]) -> list[Run]:
    """Return what is to be computed; the longest runs come first."""
    cold = tuple(name for name in options.policies if not CONTENDERS[name].warm)
    runs = []
    for case in cases:
        known = case.group == "nine"
        for startup in STARTUPS:
            if startup.delay_s not in options.startups:
                continue
            for seed in options.seeds if known else options.seeds[:1]:
                policies = tuple(options.policies) if known else cold
                runs.append(Run(case, startup, seed, policies, options.tell_startup))
    return runs


def show(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Print all tables and verdicts."""
    known = [cell for cell in cells if cell.group == "nine"]
    if known:
        show_scores("nine workloads", known, lambda cell: cell.case, options.policies)
        show_summary(known, options.policies)
        show_bars_of_nine(known)
    other = [cell for cell in cells if cell.group != "nine"]
    for group in GROUPS[1:]:
        if here := [cell for cell in other if cell.group == group]:
            show_scores(group, here, lambda cell: cell.family, options.policies)
            show_summary(here, options.policies)
    mine = [cell for cell in other if cell.policy == "ours-cold"]
    if not mine:
        return
    for group in GROUPS[1:]:
        show_bars(group, [cell for cell in mine if cell.group == group], cells)
    show_bars("all together", mine, cells)
    show_worst(mine)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, help="directory of traces in WfFormat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="of the nine")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--only", default="", help="workloads whose names contain this")
    parser.add_argument("--policies", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--startups", type=float, nargs="+", default=[s.delay_s for s in STARTUPS])
    parser.add_argument("--quick", action="store_true", help="one seed, without wfcommons")
    parser.add_argument("--tell-startup", action="store_true", help="policies know the start-up")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path, help="write every cell there")
    options = parser.parse_args()
    if options.quick:
        options.seeds = options.seeds[:1]
    return options


def main() -> None:
    options = options_of()
    began = time.monotonic()
    cases = cases_of(options)
    cells = marked(all_cells(runs_of(options, cases), options.processes))
    if not cells:
        sys.exit("no workload is left")
    show(cells, options)
    print(f"\n{len(cells)} simulations in {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    main()
