"""What first allocations of memory would have wasted on the tasks of real workflows.

::

    python benchmarks/memory.py DIRECTORY

The directory holds traces in WfFormat 1.5 with ``memoryInBytes``, such as those of WfInstances.
Online: each task is sized from those of its type that came before it, in an order that a seed
shuffles. Waste is what was given and not used over what was used, in bytes times seconds; a failed
attempt is charged 60 % of the task's time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from scalable.simulation.memory import FAILED_SHARE, Use, first_allocation, next_allocation
from scalable.simulation.workloads import Terms, of_wfformat

#: Types of tasks with fewer samples are left out, and of others no more than so many are taken.
LEAST, MOST = 15, 400
#: Before anything is known of a type.
UNKNOWN = 2 * 2**30

Rule = Callable[[Sequence[Use]], float]
RULES: dict[str, Rule] = {
    "fixed 8 GiB": lambda _: 8 * 2**30,
    "fixed 2 GiB": lambda _: 2 * 2**30,
    "most so far": lambda known: max(use.memory for use in known) if known else UNKNOWN,
    "safe": lambda known: first_allocation(known, "safe") if known else UNKNOWN,
    "aggressive": lambda known: first_allocation(known, "aggressive") if known else UNKNOWN,
}


def read(directory: Path) -> dict[str, list[Use]]:
    """Tasks by workflow and type."""
    types: dict[str, list[Use]] = defaultdict(list)
    for path in sorted(directory.rglob("*.json")):
        try:
            workload = of_wfformat(json.loads(path.read_text()), {"all": Terms()})
        except ValueError as error:
            print(f"left out {path}: {error}", file=sys.stderr)
            continue
        family = path.name.split("-")[0]
        for call in workload.calls:
            if call.memory:
                use = Use(call.memory, max(call.duration_s, 1e-3))
                types[f"{family} {call.kind.task}"].append(use)
    return {name: uses for name, uses in types.items() if len(uses) >= LEAST}


def score(types: dict[str, list[Use]], rule: Rule, seed: int) -> tuple[float, int, int]:
    """Waste, retries and tasks."""
    given = used = 0.0
    retries = tasks = 0
    for name, uses in types.items():
        order = random.Random(f"{name} {seed}").sample(uses, min(len(uses), MOST))
        for place, use in enumerate(order):
            known = order[:place]
            size = rule(known)
            largest = max((other.memory for other in known), default=size)
            tasks += 1
            used += use.memory * use.duration_s
            while size < use.memory:
                given += FAILED_SHARE * size * use.duration_s
                retries += 1
                size = next_allocation(size, largest)
            given += size * use.duration_s
    return given / used - 1, retries, tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    types = read(arguments.directory)
    if not types:
        sys.exit(f"no type of task in {arguments.directory} has {LEAST} tasks with memory")
    count = sum(min(len(uses), MOST) for uses in types.values())
    print(f"{count} tasks of {len(types)} types: {', '.join(types)}")
    print(f"{'':14s}{'wasted/used':>12s}{'retries a task':>16s}")
    for name, rule in RULES.items():
        waste, retries, tasks = score(types, rule, arguments.seed)
        print(f"{name:14s}{waste:12.2f}{retries / tasks:16.3f}")


if __name__ == "__main__":
    main()
