"""Predicted beside billed cost on the simulated clock.

::

    python benchmarks/cost.py [--seeds 10] [--traces DIRECTORY]

A plan is made from the records of earlier runs of the same work (same tasks, other running times),
for a fixed number of workers at a price, with a scheduler. The work is then simulated on those
workers and billed as clouds do: each machine from its start, by the second, a minute at least.
Workloads are generated tables of tasks, and traces in WfFormat 1.5 where a directory is given.

Two ratios of predicted to billed cost are shown, each of means over seeds. ``bill`` takes the
length of each run from the simulation, so that it is the error of the billing alone; starts of
unknown length remain. ``plan`` is the whole prediction, most of whose error is that of the
predicted length. ``adaptive`` is a plan for pools that follow the work, beside the policy of live
clusters.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean

from scalable.model import (
    ComponentSpec,
    DeploymentSpec,
    Plan,
    Price,
    Rate,
    Starting,
    TaskSpec,
    WorkerRange,
)
from scalable.planning import Knowledge, PlanRequest, Prices, make_plan
from scalable.planning.billing import always_of, billing_of
from scalable.scaling.policy import PoolScaler
from scalable.scaling.task_model import Kind, TaskModel
from simulation.rules import Fixed
from simulation.simulator import look_every_s, simulate
from simulation.workloads import Startup, TaskRow, Terms, Workload, of_tasks, traces

#: Bars: largest error of the billing of a cell, and error of the mean of all plans.
BILL_BAR, PLAN_BAR = 0.02, 0.02
#: Start of a machine that is paid from its boot on; delays differ by 20 % to each side.
STARTUP = Startup(60.0, 60.0, 60.0, (0.8, 1.2), granularity_s=1.0)
STARTING = Starting(60.0, 60.0, 60.0)
#: USD for an hour: a worker of each pool, and the scheduler.
PRICES, SCHEDULER = (0.096, 0.2, 0.5), 0.058
#: Number of earlier runs that a plan knows.
EARLIER = 3


@dataclass(frozen=True)
class Case:
    """Work with random running times, on fixed numbers of workers."""

    name: str
    make: Callable[[int], Workload]
    workers: dict[str, int]


def table(name: str, rows: Sequence[tuple[str, int, float, float]], workers: Sequence[int]) -> Case:
    """Tasks one after the other: pool, calls, mean length, and its spread (lognormal)."""
    pools = {f"p{i}": n for i, n in enumerate(workers)}

    def make(seed: int) -> Workload:
        chance = random.Random(f"{name} {seed}")
        made, before = [], []
        for place, (pool, count, mean, spread) in enumerate(rows):
            lengths = [
                mean * math.exp(chance.gauss(0, spread) - spread**2 / 2) for _ in range(count)
            ]
            made.append(TaskRow(f"t{place}", pool, lengths, before))
            before = [f"t{place}"]
        return of_tasks(name, made, {tag: Terms(n, n) for tag, n in pools.items()})

    return Case(name, make, pools)


def generated() -> list[Case]:
    return [
        table("equal calls", [("p0", 400, 90.0, 0.0)], [20]),
        table("unequal calls", [("p0", 400, 90.0, 0.5)], [20]),
        table("few calls", [("p0", 30, 600.0, 0.3)], [12]),
        table("heavy tail", [("p0", 600, 60.0, 1.0)], [16]),
        table("short run", [("p0", 60, 4.0, 0.3)], [30]),
        table(
            "chain", [("p0", 200, 60.0, 0.4), ("p0", 80, 200.0, 0.4), ("p0", 20, 30.0, 0.2)], [16]
        ),
        table(
            "three pools",
            [("p0", 300, 60.0, 0.4), ("p1", 120, 180.0, 0.6), ("p2", 16, 400.0, 0.2)],
            [16, 12, 4],
        ),
        table("many calls", [("p0", 20000, 5.0, 0.7)], [64]),
    ]


def recorded(directory: Path) -> list[Case]:
    """Traces, each on eight workers; running times vary by a tenth from run to run."""
    cases = []
    for _, work in traces(directory, {"p0": Terms(8, 8)}):

        def make(seed: int, work: Workload = work) -> Workload:
            chance = random.Random(f"{work.name} {seed}")
            calls = tuple(
                call._replace(duration_s=call.duration_s * math.exp(chance.gauss(0, 0.1)))
                for call in work.calls
            )
            return replace(work, calls=calls)

        cases.append(Case(work.name, make, {"p0": 8}))
    return cases


def spec_of(case: Case, work: Workload, *, adaptive: bool) -> DeploymentSpec:
    """The request: a task for each kind of call, after those kinds that all its calls follow."""
    after: dict[Kind, set[Kind]] = {}
    counts: dict[Kind, int] = {}
    for call in work.calls:
        counts[call.kind] = counts.get(call.kind, 0) + 1
        after.setdefault(call.kind, set()).update(work.calls[i].kind for i in call.after)
    tasks, known = {}, set()
    # Kinds whose predecessors are known; a circle of kinds is cut where it is met.
    while len(tasks) < len(counts):
        left = [kind for kind in counts if kind.task not in tasks]
        ready = [kind for kind in left if after[kind] - {kind} <= known] or left[:1]
        for kind in ready:
            waits = tuple(k.task for k in after[kind] if k in known)
            tasks[kind.task] = TaskSpec(kind.task, kind.component, count=counts[kind], after=waits)
        known.update(ready)
    ranges = {t: WorkerRange(0 if adaptive else n, n) for t, n in case.workers.items()}
    parts = {tag: ComponentSpec(tag, workers=ranges[tag]) for tag in case.workers}
    return DeploymentSpec(
        case.name,
        "cloud",
        "somewhere",
        parts,
        tasks,
        adaptive=WorkerRange(0, sum(case.workers.values())) if adaptive else None,
    )


def prices_of(case: Case) -> Prices:
    rates = {
        tag: Rate(Price("m", "here", price))
        for tag, price in zip(case.workers, PRICES, strict=False)
    }
    scheduler = Rate(Price("s", "here", SCHEDULER))
    hourly = {tag: rate.per_unit_hour for tag, rate in rates.items()}
    return Prices(hourly, rates=rates, always={"scheduler": scheduler})


def knowledge_of(case: Case, spec: DeploymentSpec, prices: Prices) -> Knowledge:
    """Knowledge from earlier runs: running times by kind, and how long starts took."""
    samples = [s for seed in range(EARLIER) for s in case.make(-1 - seed).samples()]
    model = TaskModel(None, samples)
    forecasts = {
        task.name: model.forecast(Kind(task.component, task.name)) for task in spec.tasks.values()
    }
    startup_s = dict.fromkeys(case.workers, STARTUP.delay_s)
    return Knowledge(forecasts=forecasts, startup_s=startup_s, prices=prices, starting=STARTING)


def priced(work: Workload, prices: Prices) -> Workload:
    pools = {
        tag: replace(terms, price=prices.hourly_by_tag[tag] / 3600)
        for tag, terms in work.pools.items()
    }
    return replace(work, pools=pools)


def billed(work: Workload, prices: Prices, seed: int) -> tuple[float, float]:
    """Cost and length of the simulated run on fixed workers, with the scheduler."""
    result = simulate(
        priced(work, prices),
        lambda _: Fixed(most=True),
        STARTUP,
        seed=seed,
        looks_ahead=False,
    )
    scheduler = always_of(prices, STARTING).cost(result.makespan_s)
    return result.cost + scheduler, result.makespan_s


def billed_adaptive(work: Workload, prices: Prices, model: TaskModel) -> float:
    """Cost of the simulated run on pools that follow the work, with the scheduler."""
    pools = {tag: replace(terms, minimum=0) for tag, terms in work.pools.items()}
    result = simulate(
        priced(replace(work, pools=pools), prices),
        lambda _: PoolScaler(),
        STARTUP,
        model,
        every_s=look_every_s(STARTUP.delay_s),
        looks_ahead=len(work.calls) < 5000,
    )
    return result.cost + always_of(prices, STARTING).cost(result.makespan_s)


def billing_alone(case: Case, prices: Prices, knowledge: Knowledge, run_s: float) -> float:
    """Predicted cost, if the length of the run is known."""
    terms = billing_of(case.workers, knowledge, prices)
    total = always_of(prices, knowledge.starting).cost(run_s)
    for (tag, count), each in zip(case.workers.items(), terms, strict=True):
        total += prices.hourly_by_tag[tag] / 3600 * each.paid_units(count) * each.billed_s(run_s)
    return total


def run_case(case: Case, seeds: int) -> tuple[float, float, float]:
    """Ratios predicted / billed: the billing alone, the plan, a plan for adaptive pools."""
    prices = prices_of(case)
    first = case.make(0)
    knowledge = knowledge_of(case, spec_of(case, first, adaptive=False), prices)
    plan = make_plan(spec_of(case, first, adaptive=False), "", knowledge)
    fastest = PlanRequest.parse("minimize time", "aggressive")
    loose = make_plan(spec_of(case, first, adaptive=True), "", knowledge, fastest)
    costs, bills = [], []
    for seed in range(seeds):
        cost, run_s = billed(case.make(seed), prices, seed)
        costs.append(cost)
        bills.append(billing_alone(case, prices, knowledge, run_s))
    samples = [s for seed in range(EARLIER) for s in case.make(-1 - seed).samples()]
    followed = billed_adaptive(first, prices, TaskModel(None, samples))
    return (
        sum(bills) / sum(costs),
        total_of(plan) / fmean(costs),
        total_of(loose) / followed,
    )


def total_of(plan: Plan) -> float:
    assert plan.cost_estimate is not None
    assert plan.cost_estimate.total is not None
    return plan.cost_estimate.total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--traces", type=Path, help="directory of instances in WfFormat 1.5")
    given = parser.parse_args()
    groups = {"generated": generated()}
    if given.traces is not None:
        groups["traces"] = recorded(given.traces)
    for title, cases in groups.items():
        print(f"{title:42}   bill   plan  adaptive")
        bills, wholes, loose = [], [], []
        for case in cases:
            bill, whole, adaptive = run_case(case, given.seeds)
            bills.append(bill)
            wholes.append(whole)
            loose.append(adaptive)
            print(f"  {case.name:40} {bill:6.4f} {whole:6.3f} {adaptive:9.3f}")
        worst = max(abs(ratio - 1) for ratio in bills)
        verdict(f"billing: at most {worst:.2%} off", worst, BILL_BAR)
        mean = geometric_mean(wholes)
        inside = sum(abs(whole - 1) <= PLAN_BAR for whole in wholes)
        verdict(f"plans: {mean:.4f} in the geometric mean", abs(mean - 1), PLAN_BAR)
        print(f"    {inside} of {len(wholes)} plans are within {PLAN_BAR:.0%} by themselves")
        print(f"    adaptive plans: {geometric_mean(loose):.3f} in the geometric mean (no bar)")


def verdict(what: str, reached: float, bar: float) -> None:
    print(f"  {what}; bar {bar:.0%}: {'held' if reached <= bar else 'MISSED'}")


if __name__ == "__main__":
    main()
