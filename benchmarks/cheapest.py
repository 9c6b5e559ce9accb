"""Cost and time of dividing workers among managers, by cost and by priority, on recorded workflows.

::

    python benchmarks/cheapest.py TRACES [--quick]

TRACES is a directory of workflows in WfFormat 1.5, such as WfInstances (wfcommons.org). Simulated,
on one core. A cheap manager and one that costs three times as much serve one pool. The cheap one
has the higher priority, which suits `waterfall` best. Its troubles are the scenarios below. Each
cell (trace, scenario, deadline) is run with the same policy of the pool, deadline and seed; the
deadlines are multiples of the quickest schedule on the dear manager. ``--alone`` leaves out the
static pools and the clairvoyant, which take most of the time.

The constants of the policy were set before this benchmark was run and are not fitted to it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

from scalable.scaling.cheapest_policy import Cheapest
from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolPolicy
from scalable.scaling.task_model import Sample, TaskModel
from scalable.scaling.tiers import AllocationPolicy
from scalable.scaling.waterfall import Waterfall
from simulation.managers import SimulatedManager, clairvoyant_managers, simulate_managers
from simulation.rules import Fixed
from simulation.workloads import Startup, Terms, Workload, traces

MOST = 32
SPILL_AFTER_S = 300.0
EVERY_S = 10.0
#: Larger traces take minutes to simulate.
MOST_CALLS = 450
#: Multiples of the quickest time; None for no deadline.
DEADLINES = (None, 1.5, 4.0)
DEAR = SimulatedManager("dear", Startup(60.0, 60.0, 60.0), 3.0, MOST, priority=1)


def cheap(
    delay_s: float = 60.0, assumed_s: float | None = None, **more: object
) -> SimulatedManager:
    startup = Startup(delay_s, 30.0, expected_s=assumed_s)
    return SimulatedManager("cheap", startup, 1.0, MOST, **more)  # type: ignore[arg-type]


SCENARIOS: dict[str, SimulatedManager] = {
    "quick": cheap(),
    "slow": cheap(600.0),
    "slow, unknown": cheap(600.0, 60.0),
    "few": cheap(delivers=4),
    "closed": cheap(closed=((0.0, 900.0),)),
    "failing": cheap(delivers=0),
}
#: Scenarios in which the cheap manager is slow or partly unavailable.
TROUBLED = ("slow", "slow, unknown", "few", "closed")
ALLOCATIONS: dict[str, Callable[[float | None], AllocationPolicy]] = {
    "static": lambda _: Waterfall(SPILL_AFTER_S),
    "waterfall": lambda _: Waterfall(SPILL_AFTER_S),
    "cheapest": lambda deadline_s: Cheapest(SPILL_AFTER_S, deadline_s),
}
#: Families whose decisions were read while the policy was written; all others are left out.
LOOKED_AT = ("blast", "fetchngs", "methylseq")
#: The bars: cost beside waterfall in the worst cell, and in the mean of the troubled cells.
WORST, MEAN = 1.02, 0.85


@dataclass(frozen=True)
class Cell:
    """What one policy reached on one trace, scenario and deadline."""

    family: str
    trace: str
    scenario: str
    multiple: float | None
    deadline_s: float | None
    policy: str
    time_s: float
    cost: float

    @property
    def key(self) -> tuple[str, str, float | None]:
        """What all policies were run on."""
        return self.trace, self.scenario, self.multiple

    @property
    def in_time(self) -> bool:
        """Whether the deadline was kept, or there is none."""
        return self.deadline_s is None or self.time_s <= self.deadline_s


def recorded(directory: Path) -> list[tuple[str, Workload]]:
    """Family and workload of each trace."""
    found = traces(directory, {"run": Terms(0, 2 * MOST)})
    return [each for each in found if len(each[1].calls) <= MOST_CALLS]


def earlier(workload: Workload) -> list[Sample]:
    """What an earlier run has taught: every tenth call of each kind, at least one."""
    rng = random.Random(workload.name)
    kinds = defaultdict(list)
    for sample in workload.samples():
        kinds[sample.kind].append(sample)
    return [s for each in kinds.values() for s in rng.sample(each, -(-len(each) // 10))]


def sizing(policy: str, deadline_s: float | None) -> PoolPolicy:
    if policy == "static":
        return Fixed(most=True)
    return PoolScaler("balance" if deadline_s is None else "cost", deadline_s=deadline_s)


def cells_of(
    family: str, workload: Workload, scenario: str, seed: int, quickest: float, *, alone: bool
) -> list[Cell]:
    managers = [SCENARIOS[scenario], DEAR]
    history = earlier(workload)
    cells = []
    for multiple in DEADLINES:
        deadline_s = None if multiple is None else multiple * quickest

        def cell(
            policy: str, time_s: float, cost: float, m: float | None = multiple,
            d: float | None = deadline_s,
        ) -> Cell:  # fmt: skip
            return Cell(family, workload.name, scenario, m, d, policy, time_s, cost)

        for name, allocation in ALLOCATIONS.items():
            if alone and name == "static":
                continue
            outcome = simulate_managers(
                workload,
                lambda _, n=name, d=deadline_s: sizing(n, d),  # type: ignore[misc]
                managers,
                allocation(deadline_s),
                TaskModel(history=history),
                every_s=EVERY_S,
                seed=seed,
            )
            cells.append(cell(name, outcome.time_s, outcome.cost))
        if not alone:
            best = clairvoyant_managers(workload, managers, deadline_s)
            cells.append(cell("clairvoyant", best.time_s, best.cost))
    return cells


def show(cells: list[Cell]) -> None:
    by = {(c.key, c.policy): c for c in cells}
    keys = sorted({c.key for c in cells}, key=str)
    policies = tuple(p for p in (*ALLOCATIONS, "clairvoyant") if any(c.policy == p for c in cells))
    print("beside waterfall: geometric means of cost and time; deadlines kept")
    print(f"{'scenario':15s}{'deadline':>10s}" + "".join(f"{p:>24s}" for p in policies))
    for scenario in dict.fromkeys(c.scenario for c in cells):
        for multiple in DEADLINES:
            mine = [k for k in keys if k[1:] == (scenario, multiple)]
            words = "none" if multiple is None else f"{multiple:g} x"
            print(f"{scenario:15s}{words:>10s}", end="")
            for policy in policies:
                pairs = [(by[k, policy], by[k, "waterfall"]) for k in mine]
                cost = geometric_mean(a.cost / b.cost for a, b in pairs)
                took = geometric_mean(a.time_s / b.time_s for a, b in pairs)
                kept = f"{sum(a.in_time for a, _ in pairs)}/{len(pairs)}" if multiple else ""
                print(f"{cost:10.2f}{took:7.2f}{kept:>7s}", end="")
            print()


def show_bars(cells: list[Cell]) -> None:
    by = {(c.key, c.policy): c for c in cells}
    pairs = [(c, by[c.key, "waterfall"]) for c in cells if c.policy == "cheapest"]
    ratio = {c.key: c.cost / w.cost for c, w in pairs}
    print("\nbars")
    worst = max(ratio, key=lambda key: ratio[key])
    verdict(f"cost beside waterfall, worst cell ({worst})", ratio[worst], WORST)
    dearer = [(c, w) for c, w in pairs if ratio[c.key] > WORST]
    bought = sum(c.in_time and not w.in_time for c, w in dearer)
    print(
        f"         {len(dearer)} of {len(pairs)} cells are dearer by more than 2 %; in {bought} of "
        "these the deadline was kept and waterfall missed it"
    )
    late = [ratio[c.key] for c, w in dearer if not c.in_time and not w.in_time]
    print(f"         {len(late)} of them where both missed it, and have gone on at low cost since")
    both = [ratio[c.key] for c, w in pairs if c.in_time and w.in_time]
    verdict("cost, worst cell of those where both kept the deadline", max(both), WORST)
    troubled = [ratio[c.key] for c, _ in pairs if c.scenario in TROUBLED]
    verdict("cost, mean where the cheap one is slow or partly unavailable", fmean(troubled), MEAN)
    print(f"         the geometric mean there: {geometric_mean(troubled):.3f}")
    free = [(c, w) for c, w in pairs if c.deadline_s is None]
    took = [c.time_s / w.time_s for c, w in free]
    print(
        f"         without a deadline: cost {geometric_mean(ratio[c.key] for c, _ in free):.3f}, "
        f"time {geometric_mean(took):.3f} in the geometric mean; longest {max(took):.2f}"
    )
    missed = [c.time_s / w.time_s for c, w in pairs if not c.in_time and not w.in_time]
    if missed:
        print(f"         where both missed the deadline: time {geometric_mean(missed):.3f}")
    timed = [(c, w) for c, w in pairs if c.deadline_s is not None]
    kept, before = (sum(p[i].in_time for p in timed) for i in (0, 1))
    print(
        f"  {'met   ' if kept >= before else 'MISSED'} deadlines kept: {kept} of {len(timed)}, by "
        f"waterfall {before}; kept by waterfall alone: "
        f"{sum(w.in_time and not c.in_time for c, w in timed)}"
    )
    print("\nby family: geometric mean of the cost in troubled cells; deadlines kept, by waterfall")
    for family in dict.fromkeys(c.family for c in cells):
        mine = [(c, w) for c, w in pairs if c.family == family]
        seen = " (looked at)" if family in LOOKED_AT else ""
        costs = [ratio[c.key] for c, _ in mine if c.scenario in TROUBLED]
        kept, before = (
            sum(p[i].in_time for p in mine if p[0].deadline_s is not None) for i in (0, 1)
        )
        worst = max(ratio[c.key] for c, _ in mine)
        mean = geometric_mean(costs)
        print(f"  {family:14s}{mean:8.3f}{kept:6d}{before:6d}   worst {worst:.2f}{seen}")


def verdict(what: str, reached: float, bar: float) -> None:
    print(f"  {'met   ' if reached <= bar else 'MISSED'} {what}: {reached:.3f} (bar {bar:g})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--quick", action="store_true", help="one trace of each family")
    parser.add_argument("--alone", action="store_true", help="only cheapest beside waterfall")
    parser.add_argument("--families", nargs="+", help="only these families of traces")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every cell there")
    given = parser.parse_args()
    chosen = [t for t in recorded(given.traces) if not given.families or t[0] in given.families]
    if given.quick:
        chosen = list({family: (family, workload) for family, workload in chosen}.values())
    began = time.monotonic()
    cells: list[Cell] = []
    for family, workload in chosen:
        quickest = clairvoyant_managers(workload, [DEAR], 0.0).time_s
        for scenario in given.scenarios:
            cells += cells_of(family, workload, scenario, given.seed, quickest, alone=given.alone)
        print(f"{workload.name}: {len(workload.calls)} calls", flush=True)
    show(cells)
    show_bars(cells)
    print(f"\n{len(cells)} cells in {time.monotonic() - began:.0f} s")
    if given.json:
        given.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))


if __name__ == "__main__":
    main()
