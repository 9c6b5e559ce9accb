"""Construction of a plan: worker counts, predictions and reasons. Does no I/O."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from scalable.errors import PlanError
from scalable.model import (
    CostEstimate,
    DeploymentSpec,
    Forecast,
    FrontPoint,
    Plan,
    PredictedCost,
    ScalePlan,
    TaskPrediction,
)
from scalable.planning import uncertainty
from scalable.planning.billing import always_of, billing_of, hourly_by_tag, weighed_spread
from scalable.planning.counts import ranges_of, total_limit, worker_counts
from scalable.planning.draws import draw_runs
from scalable.planning.explain import PlanExplanation, explain
from scalable.planning.frontier import CountBounds
from scalable.planning.knowledge import Knowledge, Prices
from scalable.planning.network import Network, make_network
from scalable.planning.notices import advise_memory
from scalable.planning.objectives import HEADROOM, Choice, Point, Problem, choose
from scalable.planning.request import PlanRequest
from scalable.planning.work import ExpectedTasks, expected_calls, slots_of
from scalable.quantiles import quantile

#: Maximum number of alternatives that a plan contains, apart from the chosen counts.
KEPT_POINTS = 40


def make_plan(
    spec: DeploymentSpec,
    manifest_lock: str,
    knowledge: Knowledge | None = None,
    request: PlanRequest | None = None,
) -> Plan:
    """Return a plan with worker counts, predicted time, cost and reasons.
    ``spec`` must be free of :func:`.counts.conflicts`. Equal input gives equal plans. Without
    ``request``, the manifest alone determines the counts. Raises PlanError if no counts within the
    bounds meet the deadline or the budget.
    """
    knowledge, request = knowledge or Knowledge(), request or PlanRequest()
    prices = knowledge.prices or written_prices(spec)
    calls = expected_calls(spec, knowledge, most_of(spec))
    deadline_s, deadline_name = _deadline(spec, request)
    sizing = _Sizing(spec, knowledge, request, calls, prices)
    choice: Choice | None = None
    if request.objective is None or request.policy == "manual":
        counts = worker_counts(spec)
        problem = sizing.problem(counts)
    else:
        problem = sizing.problem()
        choice = choose(problem, request, deadline_s)
        counts = dict(zip(spec.components, choice.point.workers, strict=True))
    scale_plan = ScalePlan(counts, {tag: spec.resources(tag) for tag in counts})
    plan = Plan(
        target_name=spec.target_name,
        provider_name=spec.provider_name,
        manifest_lock=manifest_lock,
        scale_plan=scale_plan,
        task_to_component={task.name: task.component for task in spec.tasks.values()},
        objective=request.objective,
        policy=request.policy,
        deadline_s=deadline_s,
        budget=request.budget,
        front=() if choice is None else _kept(problem, calls, knowledge, choice),
        memory_advice=advise_memory(spec, calls),
    )
    plan = _predicted(plan, problem, calls, knowledge, prices)
    explanation = PlanExplanation(
        spec, plan, problem, calls, knowledge, choice, deadline_name, prices, request
    )
    binding, reasons = explain(explanation)
    return replace(plan, binding=binding, reasons=reasons)


def written_prices(spec: DeploymentSpec) -> Prices | None:
    """Return prices from the target's ``prices`` or price per core, or None without either."""
    per_core, named = spec.price_per_core_hour, spec.prices
    hourly = {
        tag: named[tag] if tag in named else component.cpus * (per_core or 0.0)
        for tag, component in spec.components.items()
        if tag in named or per_core is not None
    }
    if not hourly:
        return None
    keys = ["prices"] * any(tag in named for tag in hourly)
    keys += ["price_per_core_hour"] * any(tag not in named for tag in hourly)
    return Prices(hourly, source=f"{' and '.join(keys)} of target {spec.target_name!r}")


def _deadline(spec: DeploymentSpec, request: PlanRequest) -> tuple[float | None, str]:
    if request.deadline_s is not None:
        return request.deadline_s, "the deadline"
    if spec.walltime_s is None:
        return None, ""
    return spec.walltime_s, f"the walltime of target {spec.target_name!r}"


@dataclass(frozen=True)
class _Sizing:
    spec: DeploymentSpec
    knowledge: Knowledge
    request: PlanRequest
    calls: Sequence[ExpectedTasks]
    prices: Prices | None

    def problem(self, counts: Mapping[str, int] | None = None) -> Problem:
        """Return the problem. If ``counts`` are given, they are the only possible counts."""
        spec, prices = self.spec, self.prices
        hourly = dict.fromkeys(spec.components, 3600.0) if prices is None else prices.hourly_by_tag
        rates = {tag: hourly.get(tag, 0.0) / 3600 for tag in spec.components}
        named = {task.component for task in spec.tasks.values()}
        known = named | {task.component for task in self.knowledge.unlisted}
        if counts is None:
            working = {c.tag for c in self.calls if c.count}
            bounds = bounds_of(spec, working=working, known=known, rates=rates)
        else:
            fixed = [counts[tag] for tag in spec.components]
            bounds = CountBounds(fixed, fixed, None, list(rates.values()))
        empty = {tag for tag, n in zip(spec.components, bounds.most, strict=True) if not n}
        calls = [replace(c, count=0) if c.tag in empty - known else c for c in self.calls]
        usual = uncertainty.overhead(self.knowledge.past_predictions)
        return Problem(
            predicted=self._network(calls, "predicted"),
            planned=self._network(calls, self.request.policy),
            certain=self._network(
                [replace(c, count=0) if c.guessed else c for c in calls], self.request.policy
            ),
            bounds=bounds,
            overhead=usual,
            released=spec.adaptive is not None,
            unit="worker-seconds" if prices is None else prices.currency,
            billing=billing_of(spec.components, self.knowledge, prices),
            always=always_of(prices, self.knowledge.starting),
        )

    def _network(self, calls: Sequence[ExpectedTasks], policy: str) -> Network:
        def duration_of(forecast: Forecast) -> float:
            # Many tasks take their mean on average, so a plan must not assume less than the mean.
            if policy == "safe":
                return HEADROOM * max(forecast.mean_s, forecast.q80_s)
            if policy == "aggressive":
                return max(forecast.mean_s, forecast.q50_s)
            return forecast.mean_s

        slots = {tag: slots_of(self.spec, tag) for tag in self.spec.components}
        startup_s = {tag: self.knowledge.startup_of(tag) or 0.0 for tag in self.spec.components}
        return make_network(calls, slots, startup_s, duration_of)


def _predicted(
    plan: Plan,
    problem: Problem,
    calls: Sequence[ExpectedTasks],
    knowledge: Knowledge,
    prices: Prices | None,
) -> Plan:
    workers = tuple(plan.scale_plan.workers_by_tag.values())
    time_s = problem.time_s(workers)
    guessed = any(c.guessed for c in calls)
    plan = replace(
        plan,
        cost_estimate=_cost_estimate(plan, prices, None),
        tasks={c.task: _task(c) for c in calls},
        overhead=problem.overhead,
    )
    if not math.isfinite(time_s) or not calls or (guessed and plan.objective is None):
        return plan
    draws = draw_runs(problem.predicted, calls, workers, knowledge)
    times = [draw.time_s * problem.overhead for draw in draws]
    held = problem.held(workers)
    expected = min(problem.cost(workers), held)  # as the cost to pay
    costs, billed_costs = (
        [cost(workers, draw.work, time_s) for draw, time_s in zip(draws, times, strict=True)]
        for cost in (problem.cost, problem.spent)
    )
    past_predictions = knowledge.past_predictions
    billed = problem.spent(workers)
    low, high = uncertainty.interval((), billed_costs, billed)
    spread = _spread(problem, workers)
    cost = PredictedCost(
        expected,
        uncertainty.interval((), costs, expected),
        held,
        billed,
        (low * spread[0], high * spread[1]),
        problem.unit,
    )
    evidence = uncertainty.evidence_of(calls)
    return replace(
        plan,
        cost_estimate=_cost_estimate(plan, prices, billed),
        predicted_time_s=time_s,
        startup_s=_startup_s(problem, knowledge),
        predicted_interval_s=uncertainty.interval(past_predictions, times, time_s),
        predicted_cost=cost,
        confidence=uncertainty.confidence(past_predictions, times, time_s) if evidence else 0.0,
    )


def _startup_s(problem: Problem, knowledge: Knowledge) -> float | None:
    """Return the part of a run's time before its first task, or None if it is not included."""
    network = problem.predicted
    first = {network.tags[s.pool] for s in network.stages if s.calls and not s.before}
    known = [seconds for tag in first if (seconds := knowledge.startup_of(tag)) is not None]
    return min(known) * problem.overhead if known and len(known) == len(first) else None


def _spread(problem: Problem, workers: Sequence[int]) -> tuple[float, float]:
    """Return the least and greatest cost for ranges of prices, relative to the expected cost."""
    if problem.billing is None:
        return 1.0, 1.0
    parts = [
        (rate * terms.paid_units(count), terms.spread)
        for rate, count, terms in zip(problem.bounds.rates, workers, problem.billing, strict=True)
    ]
    return weighed_spread([*parts, (problem.always.rate, problem.always.spread)])


def _cost_estimate(plan: Plan, prices: Prices | None, total: float | None) -> CostEstimate | None:
    if prices is None:
        return None
    by_tag = hourly_by_tag(plan.scale_plan.workers_by_tag, prices)
    always = {name: rate.per_unit_hour for name, rate in prices.always.items()}
    return CostEstimate(
        total=total,
        by_tag=by_tag,
        hourly=sum(by_tag.values()) + sum(always.values()),
        currency=prices.currency,
        source=prices.source,
        as_of=prices.as_of,
        always_by_name=always,
        rates=prices.rates,
        always=prices.always,
        notes=prices.notes,
    )


def _task(calls: ExpectedTasks) -> TaskPrediction:
    forecast = calls.forecast
    return TaskPrediction(
        tag=calls.tag,
        calls=calls.count,
        counted=calls.counted,
        mean_s=forecast.mean_s,
        q50_s=forecast.q50_s,
        q80_s=forecast.q80_s,
        q95_s=forecast.q95_s,
        memory=forecast.memory,
        samples=forecast.samples,
        source=forecast.source,
        measured_on=dict(forecast.measured_on),
    )


def _kept(
    problem: Problem, calls: Sequence[ExpectedTasks], knowledge: Knowledge, choice: Choice
) -> tuple[FrontPoint, ...]:
    front = choice.front
    step = max(1.0, (len(front) - 1) / (KEPT_POINTS - 1))
    positions = {round(i * step) for i in range(KEPT_POINTS)} | {len(front) - 1}
    kept = [
        point
        for position, point in enumerate(front)
        if position in positions or point.workers == choice.point.workers
    ]
    tags = problem.predicted.tags
    wrong = quantiles(problem, calls, knowledge, kept)
    return tuple(
        FrontPoint(p.time_s, p.cost, dict(zip(tags, p.workers, strict=True)), *ends)
        for p, ends in zip(kept, wrong, strict=True)
    )


# Bounds -------------------------------------------------------------------------------------------

#: Number of workers that stands for "no maximum".
UNBOUNDED = 10**9


def most_of(spec: DeploymentSpec) -> dict[str, int | None]:
    """Return the maximum number of workers of each tag, or None for no maximum."""
    total = total_limit(spec)
    # If ``max_workers`` is an option but not set, a pool without ``workers`` gets at most one.
    alone = total is None and "max_workers" in spec.options
    found: dict[str, int | None] = {}
    for tag, (_, high) in ranges_of(spec).items():
        most = 1 if alone and spec.components[tag].workers is None else high
        bounds = [n for n in (most, None if total is None else total[1]) if n is not None]
        found[tag] = min(bounds, default=None)
    return found


def bounds_of(
    spec: DeploymentSpec,
    *,
    working: Collection[str],
    known: Collection[str],
    rates: Mapping[str, float],
) -> CountBounds:
    """Return the bounds of all pools, in the order of the manifest.
    Each tag with tasks (``working``) gets at least one worker. So does a tag without ``workers``
    and without named tasks (not ``known``), if the total allows it, because users may submit tasks
    to it. ``rates`` are costs per worker-second. Raises PlanError if a tag with known tasks cannot
    get a worker.
    """
    total = total_limit(spec)
    most = {tag: UNBOUNDED if n is None else n for tag, n in most_of(spec).items()}
    least = {tag: min(low, most[tag]) for tag, (low, _) in ranges_of(spec).items()}
    room = UNBOUNDED if total is None else total[1] - sum(least.values())
    idle = {t for t in spec.components if t not in known and spec.components[t].workers is None}
    for tag in sorted({*working, *idle}, key=lambda t: (t not in known, spec.tags.index(t))):
        if least[tag]:
            continue
        if most[tag] and room > 0:
            least[tag], room = 1, room - 1
        elif tag in known:
            bound = f"{total[0]} {total[1]}" if most[tag] and total else "its maximum of 0 workers"
            raise PlanError(
                f"component {tag!r} has tasks to run, but {bound} does not allow a worker for it",
                hint="raise this limit",
            )
        elif spec.components[tag].workers is None:
            most[tag] = 0
    return CountBounds(
        least=list(least.values()),
        most=list(most.values()),
        total=None if total is None else total[1],
        rates=[rates[tag] for tag in spec.components],
        least_total=0 if spec.adaptive is None else spec.adaptive.minimum,
    )


# Risk ---------------------------------------------------------------------------------------------

#: Quantile of time and cost that stands for a wrong prediction.
WRONG = 0.8
#: Number of points of a front whose runs are simulated; the others are interpolated.
SIMULATED = 6
#: Number of simulated runs of each of these points.
DRAWS = 60


def quantiles(
    problem: Problem, calls: Sequence[ExpectedTasks], knowledge: Knowledge, points: Sequence[Point]
) -> list[tuple[float, float]]:
    """Return each point's 80 % quantiles of time and cost. They are at least the predictions.
    They come from simulated runs. The time also uses earlier predictions if there are enough.
    Between simulated points, the ratio of quantile and prediction is interpolated.
    """
    step = max(1.0, (len(points) - 1) / (SIMULATED - 1))
    places = sorted({min(round(i * step), len(points) - 1) for i in range(SIMULATED)})
    ratios = [_ratios(problem, calls, knowledge, points[place]) for place in places]
    found = []
    for position, point in enumerate(points):
        time, cost = _between(places, ratios, position)
        found.append((point.time_s * time, point.cost * cost))
    return found


def _ratios(
    problem: Problem, calls: Sequence[ExpectedTasks], knowledge: Knowledge, point: Point
) -> tuple[float, float]:
    draws = draw_runs(problem.predicted, calls, point.workers, knowledge, number=DRAWS)
    times = [draw.time_s * problem.overhead for draw in draws]
    costs = [
        problem.cost(point.workers, draw.work, time_s)
        for draw, time_s in zip(draws, times, strict=True)
    ]
    past = knowledge.past_predictions
    if len(past) >= uncertainty.PREDICTIONS_FOR_INTERVAL:
        usual = uncertainty.overhead(past)
        times = [point.time_s * one.ratio / usual for one in past]
    return _ratio(times, point.time_s), _ratio(costs, point.cost)


def _ratio(values: Sequence[float], predicted: float) -> float:
    return max(1.0, quantile(sorted(values), WRONG) / predicted) if predicted > 0 else 1.0


def _between(
    places: Sequence[int], ratios: Sequence[tuple[float, float]], position: int
) -> tuple[float, float]:
    after = bisect.bisect_left(places, position)
    if places[after] == position:
        return ratios[after]
    (low, first), (high, second) = itertools.islice(
        zip(places, ratios, strict=True), after - 1, after + 1
    )
    share = (position - low) / (high - low)
    return (
        first[0] + share * (second[0] - first[0]),
        first[1] + share * (second[1] - first[1]),
    )
