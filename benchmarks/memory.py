"""Measure the memory that reservations waste on the tasks of real workflows.

::

    python benchmarks/memory.py DIRECTORY

The directory holds traces in WfFormat 1.5 with ``memoryInBytes``, such as those of WfInstances.
Each task gets a reservation that depends on the tasks of its type that came before it, in an order
that a seed shuffles. The rule "advice" follows the advice of `scalable plan`. Waste is the reserved
and unused memory over the used memory, in bytes times seconds; a task that runs out of memory is
charged 60 % of its time and runs again with twice the reservation.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from scalable.planning.notices import judge_memory
from scalable.quantiles import quantile
from simulation.workloads import Terms, traces

#: Types of tasks with fewer samples are left out.
LEAST = 15
#: Samples of one type that are replayed at most.
MOST = 400
#: Reservation in bytes while nothing is known of a type.
UNKNOWN = 2 * 2**30
#: Share of its running time after which a task runs out of memory, on average.
FAILED_SHARE = 0.6
#: A task that ran out of memory is run again with this multiple of its reservation.
RETRY_FACTOR = 2


class Use(NamedTuple):
    """Peak memory of a task in bytes, and its running time in seconds."""

    memory: float
    duration_s: float


def follow_advice(reserved: float, known: Sequence[Use]) -> float:
    """Change a reservation as the notes of `scalable plan` advise."""
    if not known:
        return reserved
    used = int(quantile(sorted(use.memory for use in known), 0.95))
    advice = judge_memory("all", int(reserved), used, len(known))
    return reserved if advice is None else advice.advised


#: Reservation of the task before, and the tasks before -> reservation.
Rule = Callable[[float, Sequence[Use]], float]
RULES: dict[str, Rule] = {
    "fixed 8 GiB": lambda _, __: 8 * 2**30,
    "fixed 2 GiB": lambda _, __: 2 * 2**30,
    "most so far": lambda _, known: max((use.memory for use in known), default=UNKNOWN),
    "advice": follow_advice,
}


def read(directory: Path) -> dict[str, list[Use]]:
    types: dict[str, list[Use]] = defaultdict(list)
    for family, workload in traces(directory, {"all": Terms()}):
        for call in workload.calls:
            if call.memory:
                use = Use(call.memory, max(call.duration_s, 1e-3))
                types[f"{family} {call.kind.task}"].append(use)
    return {name: uses for name, uses in types.items() if len(uses) >= LEAST}


def score(types: dict[str, list[Use]], rule: Rule, seed: int) -> tuple[float, int, int]:
    given = used = 0.0
    retries = tasks = 0
    for name, uses in types.items():
        reserved: float = UNKNOWN
        order = random.Random(f"{name} {seed}").sample(uses, min(len(uses), MOST))
        for place, use in enumerate(order):
            size = reserved = rule(reserved, order[:place])
            tasks += 1
            used += use.memory * use.duration_s
            while size < use.memory:
                given += FAILED_SHARE * size * use.duration_s
                retries += 1
                size *= RETRY_FACTOR
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
