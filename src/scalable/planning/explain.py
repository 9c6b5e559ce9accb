"""Reasons for a plan's counts, as sentences for the user. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalable.model import DeploymentSpec, Plan
from scalable.model.plan import LOW_CONFIDENCE
from scalable.planning.billing import NOT_COUNTED, old_prices
from scalable.planning.counts import total_limit
from scalable.planning.idle import IdleWorkers, idle_sentence, idle_workers, known_calls
from scalable.planning.knowledge import Knowledge, Prices
from scalable.planning.notices import memory_in_words
from scalable.planning.objectives import Choice, Problem
from scalable.planning.request import PlanRequest
from scalable.planning.uncertainty import BAND, evidence_of, overhead
from scalable.planning.work import GUESSED_CALLS, GUESSED_DURATION_S, ExpectedTasks, slots_of
from scalable.units import counted, format_amount, format_duration

#: Cost if workers stay until the end / expected cost: above this ratio, the cost is explained.
_HELD = 1.05
#: Maximum number of names that one sentence lists.
_SHOWN = 3
#: Weight of measurements (0 to 1) below which a plan names the least measured task.
_ENOUGH_EVIDENCE = 0.5
_SERVES = {
    "minimize cost": "the fewest workers",
    "least cost": "the lowest cost",
    "minimize time": "the most workers that still shorten the run",
    "balance": "the counts that are nearest to both the cheapest and the fastest",
}


@dataclass(frozen=True)
class PlanExplanation:
    """Input of an explanation: a plan, and the values that it was made from."""

    spec: DeploymentSpec
    plan: Plan
    problem: Problem
    calls: Sequence[ExpectedTasks]
    knowledge: Knowledge
    choice: Choice | None
    deadline_name: str
    prices: Prices | None = None
    request: PlanRequest = PlanRequest()  # noqa: RUF009 - frozen


def explain(given: PlanExplanation) -> tuple[str | None, tuple[str, ...]]:
    """Return the limit that determined the counts (None if they were fixed), and the reasons."""
    binding = None if given.choice is None else _binding(given)
    reasons = [
        *_objective(given, binding),
        *_guesses(given),
        *_work(given),
        *(idle_sentence(given.spec, idle) for idle in _idle(given)),
        *_trust(given),
        *_time(given),
        *_cost(given),
        *map(memory_in_words, given.plan.memory_advice),
    ]
    return binding, tuple(reasons)


def _binding(given: PlanExplanation) -> str:
    choice, problem, plan = given.choice, given.problem, given.plan
    assert choice is not None
    workers = choice.point.workers
    if not choice.in_time:
        return given.deadline_name
    if plan.budget is not None and choice.point != choice.front[-1]:
        dearer = [p for p in choice.front if p.time_s < choice.point.time_s]
        if all(problem.spent(p.workers) > plan.budget for p in dearer[:1]):
            return f"the budget of {plan.budget:g} {problem.unit}"
    if plan.objective == "minimize time":
        return _ceiling(given, workers)
    if plan.objective == "minimize cost":
        return _binds_cost(given, workers)
    return "none: the counts lie between the cheapest and the fastest"


def _binds_cost(given: PlanExplanation, workers: Sequence[int]) -> str:
    """Return the limit that prevents a cheaper plan."""
    choice, problem = given.choice, given.problem
    assert choice is not None
    if all(n <= low for n, low in zip(workers, problem.bounds.least, strict=True)):
        return "the minimum counts of the pools"
    if given.request.least_cost:
        limit_s = given.plan.deadline_s or 0.0
        cost = problem.spent(workers) * (1 - 1e-9)
        slower = [p.workers for p in choice.front if problem.planned_s(p.workers) > limit_s]
        if not any(problem.spent(counts) < cost for counts in slower):
            return "none: no other counts cost less"
    return given.deadline_name or "adaptive.minimum"


def _ceiling(given: PlanExplanation, workers: Sequence[int]) -> str:
    """Return the limit on the worker counts that prevents a shorter run."""
    spec, problem = given.spec, given.problem
    total = total_limit(spec)
    network, time_s = problem.predicted, problem.time_s(workers)
    apart = []  # useful count of each pool without the common total
    for pool, component in enumerate(spec.components.values()):
        most = None if component.workers is None else component.workers.maximum
        useful = network.most_useful(pool)
        apart.append(max(workers[pool], useful if most is None else min(most, useful)))
    if total is not None and problem.time_s(apart) < time_s:
        return f"{total[0]} {total[1]} of target {spec.target_name!r}"
    for pool, (tag, count) in enumerate(zip(spec.components, workers, strict=True)):
        useful = max(count, network.most_useful(pool))
        more = [*workers[:pool], useful, *workers[pool + 1 :]]
        if count >= problem.bounds.most[pool] and problem.time_s(more) < time_s:
            written = spec.components[tag].workers is not None
            key = (
                f"components.{tag}.workers"
                if written
                else "max_workers or n_workers, which are not set"
            )
            return f"{key}: at most {count} for {tag!r}"
    return "the tasks themselves: more workers do not shorten the run"


def _objective(given: PlanExplanation, binding: str | None) -> Iterator[str]:
    plan, problem = given.plan, given.problem
    if plan.objective is None:
        if (given.request.deadline_s, given.request.budget) != (None, None):
            yield from _exceeded_limits(given)
        return
    if given.request.implied:
        limit, chosen = (
            ("deadline", "cheapest") if given.request.least_cost else ("budget", "quickest")
        )
        yield f"No objective was given: the {chosen} plan within the {limit} is chosen."
    if given.choice is None:
        yield (
            "Policy manual: the worker counts of the manifest are used, and objective "
            f"{plan.objective!r} does not change them."
        )
    else:
        within = ""
        if given.choice.in_time and given.deadline_name:
            assert plan.deadline_s is not None
            within = f" within {given.deadline_name}, {format_duration(plan.deadline_s)}"
        if plan.budget is not None and given.choice.in_budget:
            within += " and" if within else " within"
            within += f" the budget, {plan.budget:g} {problem.unit}"
        serves = _SERVES["least cost" if given.request.least_cost else plan.objective] + within
        yield f"Objective {plan.objective!r}, policy {plan.policy}: {serves}."
        yield f"Binding: {binding}."
        if plan.policy == "safe":
            planned = format_duration(problem.planned_s(given.choice.point.workers))
            yield (
                "Policy safe plans with the 80 % quantile of running times and 20 % more work: "
                f"{planned} in total."
            )
        if not given.choice.in_time:
            yield (
                f"According to this guess the run exceeds {given.deadline_name}: "
                f"it takes at least {format_duration(given.choice.least_s)}."
            )
        if not given.choice.in_budget:
            least = _amount(problem.spent(given.choice.point.workers), problem.unit)
            yield f"According to this guess the run exceeds the budget: it costs at least {least}."
    yield from _exceeded_limits(given)


def _exceeded_limits(given: PlanExplanation) -> Iterator[str]:
    plan = given.plan
    if plan.predicted_time_s is None or plan.deadline_s is None:
        return
    if given.choice is None and plan.predicted_time_s > plan.deadline_s:
        limit = format_duration(plan.deadline_s)
        yield f"The predicted time exceeds {given.deadline_name}, {limit}."
    if given.choice is None and plan.budget is not None and plan.predicted_cost is not None:
        unit = given.problem.unit
        cost = given.problem.spent(list(plan.scale_plan.workers_by_tag.values()))
        if cost > plan.budget:
            least, most = _amount(cost, unit), f"{plan.budget:g} {unit}"
            yield f"The predicted cost of {least} exceeds the budget of {most}."
    resources = plan.scale_plan.resources_by_tag.values()
    limits = [r.walltime_s for r in resources if r.walltime_s is not None]
    if limits and plan.predicted_time_s > min(limits):
        yield (
            "The run takes longer than the walltime of one job: workers whose job ends are "
            "replaced."
        )


def _guesses(given: PlanExplanation) -> Iterator[str]:
    guessed = [c for c in given.calls if c.guessed]
    busy = {c.tag for c in given.calls}
    idle = [tag for tag in given.spec.components if tag not in busy]
    if idle and given.choice is not None:
        shown = ", ".join(idle[:_SHOWN]) + (" and more" if len(idle) > _SHOWN else "")
        yield (
            f"No task names {shown}: each gets one worker if the limits allow it, and no work is "
            "planned for it. Add a task with `component` to the manifest."
        )
    if not guessed:
        return
    more = len(guessed) - _SHOWN
    names = ", ".join(repr(c.task) for c in guessed[:_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
    unknown = f"neither an earlier run nor the manifest describes {names}"
    if given.plan.objective is not None:
        assumed = f"{format_duration(GUESSED_DURATION_S)} and {GUESSED_CALLS} tasks for each worker"
        yield f"This is a guess: {unknown}, so tasks of {assumed} are assumed."
    else:
        yield f"No time is predicted: {unknown}."
    missing = [_missing_keys(c, given.spec) for c in guessed[:_SHOWN]]
    yield f"Add to the manifest: {'; '.join(missing)}."


def _idle(given: PlanExplanation) -> list[IdleWorkers]:
    known = known_calls(given.spec, given.knowledge, given.calls)
    counts = given.plan.scale_plan.workers_by_tag
    return list(idle_workers(given.spec, known, counts))


def _missing_keys(calls: ExpectedTasks, spec: DeploymentSpec) -> str:
    """Return the manifest keys that would replace a guess."""
    if calls.task not in spec.tasks:
        return f"a task with `component: {calls.tag}`, `count` and `duration`, under `tasks`"
    keys = ["count"] * (calls.counted == "guess")
    keys += ["duration"] * (calls.forecast.source == "guess")
    return " and ".join(f"`tasks.{calls.task}.{key}`" for key in keys)


def _work(given: PlanExplanation) -> Iterator[str]:
    if given.plan.objective is None and given.plan.predicted_time_s is None:
        return
    sources = {"manifest": "according to the manifest", "guess": "guessed"}
    known = [c for c in given.calls if c.count and not c.guessed]
    for c in known[:_SHOWN]:
        source = (
            sources.get(c.forecast.source)
            or f"from {counted(c.forecast.samples, 'task')} of earlier runs"
        )
        yield (
            f"{c.task}: {counted(c.count, 'task')} of {format_duration(c.forecast.mean_s)} "
            f"in pool {c.tag}, {source}."
        )
    if len(known) > _SHOWN:
        yield f"{counted(len(known) - _SHOWN, 'more task')}: see `tasks` in the plan."


def _trust(given: PlanExplanation) -> Iterator[str]:
    plan, past_predictions = given.plan, given.knowledge.past_predictions
    if plan.predicted_time_s is None:
        return
    yield from _elsewhere(given)
    low, high = BAND
    confidence = f"Confidence that the run takes {low:g} to {high:g} times the predicted time"
    if past_predictions:
        held = sum(low <= past.ratio / plan.overhead <= high for past in past_predictions)
        count = len(past_predictions)
        yield f"{confidence}: {held} of {count} earlier predictions would have held."
    elif not any(c.guessed for c in given.calls):
        yield f"{confidence} {_evidence(given.calls, low=plan.confidence < LOW_CONFIDENCE)}."
    if overhead(past_predictions) != 1.0:
        yield (
            f"Earlier runs took {plan.overhead:.2f} times as long as their tasks alone; the "
            "prediction includes this factor."
        )


def _elsewhere(given: PlanExplanation) -> Iterator[str]:
    """Yield a note if durations were measured only on other targets."""
    target = given.spec.target_name
    moved = [c for c in given.calls if c.count and c.forecast.elsewhere]
    if not moved:
        return
    sources = ", ".join(dict.fromkeys(t for c in moved for t in c.forecast.measured_on))
    names = ", ".join(c.task for c in moved[:_SHOWN]) + (" and more" if len(moved) > _SHOWN else "")
    since = f"{target} has not run {names}" if given.knowledge.ran_here else f"{target} has not run"
    yield (
        f"Running times of {names} are from target {sources}; target {since} yet, so it may be "
        "much faster or slower."
    )


def _evidence(calls: Sequence[ExpectedTasks], *, low: bool) -> str:
    """Return a phrase: how many measured tasks support the forecasts, or which name has none."""
    starts = "is low: " if low else "is not low, although "
    if evidence_of(calls) >= _ENOUGH_EVIDENCE:
        measured = sum(c.forecast.samples for c in calls if c.measured)
        return f"rests on {counted(measured, 'measured task')}; no earlier prediction exists"
    weakest = max(calls, key=lambda c: c.count * c.forecast.mean_s * (1 - evidence_of([c])))
    if not weakest.measured:
        here = " on this target" if weakest.forecast.elsewhere else ""
        return f"{starts}no task of {weakest.task} was measured{here}"
    samples = weakest.forecast.samples
    were = "was" if samples == 1 else "were"
    return f"{starts}only {counted(samples, 'task')} of {weakest.task} {were} measured"


def _time(given: PlanExplanation) -> Iterator[str]:
    plan, spec = given.plan, given.spec
    counts = plan.scale_plan.workers_by_tag
    if plan.predicted_time_s is None:
        waiting = dict.fromkeys(c.tag for c in given.calls if c.count and not counts[c.tag])
        if waiting:
            yield (
                "No time is predicted: these pools have tasks to run and start without a worker: "
                f"{', '.join(waiting)}."
            )
        return
    unmeasured = [tag for tag in spec.components if tag not in given.knowledge.startup_s]
    if given.knowledge.counts_startup and unmeasured:
        shown = ", ".join(unmeasured[:_SHOWN])
        assumed = given.knowledge.startup_of(unmeasured[0])
        counts_as = (
            "is not included" if assumed is None else f"is assumed to be {format_duration(assumed)}"
        )
        yield f"The start-up time of workers of {shown} has not been measured and {counts_as}."
    served = {tag: slots_of(spec, tag) * n for tag, n in counts.items()}
    named = {idle.tag for idle in _idle(given)}
    for c in given.calls:
        if c.tag in named:
            continue
        room = served[c.tag]
        if 0 < c.count < room and given.choice is None:
            yield f"Pool {c.tag} can run {room} tasks at once; task {c.task} has {c.count}."
            return


def _cost(given: PlanExplanation) -> Iterator[str]:
    cost = given.plan.predicted_cost
    if cost is not None and not given.problem.released and cost.held > _HELD * cost.expected:
        yield (
            f"The cost of {_amount(cost.held, cost.unit)} counts all workers until the end of the "
            f"run; it is {_amount(cost.expected, cost.unit)} if idle workers are released: set "
            "`adaptive` on the target."
        )
    if given.prices is None:
        return
    yield from given.prices.notes
    if given.prices.rates:
        programs = ", ".join(given.prices.always) or "no scheduler"
        yield f"Counted besides workers: {programs}. Not counted: {NOT_COUNTED}."
    if given.knowledge.today is not None:
        yield from old_prices(given.prices, given.knowledge.today)


def _amount(amount: float, unit: str) -> str:
    return f"{format_amount(amount, unit)} {unit}"
