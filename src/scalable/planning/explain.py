"""Says why a plan is as it is, in whole sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalable.planning.bounds import total_of
from scalable.planning.knowledge import Knowledge
from scalable.planning.objectives import Choice, Problem
from scalable.planning.uncertainty import BAND, evidence_of, overhead
from scalable.planning.work import GUESSED_CALLS, GUESSED_DURATION_S, Calls, slots_of
from scalable.spec import DeploymentSpec, Plan
from scalable.units import counted, format_amount, format_bytes, format_duration

#: Workers that stay are worth a word where they cost more by this factor.
_HELD = 1.05
_SHOWN = 3
_SERVES = {
    "minimize cost": "the fewest workers",
    "minimize time": "the most workers that still shorten the run",
    "balance": "the point of the front that is nearest to both the cheapest and the fastest",
}


@dataclass(frozen=True)
class Explanation:
    """What there is to explain."""

    spec: DeploymentSpec
    plan: Plan
    problem: Problem
    calls: Sequence[Calls]
    knowledge: Knowledge
    choice: Choice | None
    deadline_name: str


def explain(given: Explanation) -> tuple[str | None, tuple[str, ...]]:
    """The binding constraint, None where nothing was chosen, and the reasons."""
    binding = None if given.choice is None else _binding(given)
    reasons = [
        *_aim(given, binding),
        *_guesses(given),
        *_work(given),
        *_trust(given),
        *_time(given),
        *_cost(given),
        *_memory(given),
    ]
    return binding, tuple(reasons)


def _binding(given: Explanation) -> str:
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
        if any(n > low for n, low in zip(workers, problem.bounds.least, strict=True)):
            return given.deadline_name or "adaptive.minimum"
        return "the least workers that the pools may have"
    return "none: it lies between the extremes"


def _ceiling(given: Explanation, workers: Sequence[int]) -> str:
    """Why a run gets no shorter."""
    spec, problem = given.spec, given.problem
    total = total_of(spec)
    network, time_s = problem.predicted, problem.time_s(workers)
    apart = []  # what the pools could have, each on its own
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
            key = f"components.{tag}.workers" if written else "max_workers, which is not written"
            return f"{key}: at most {count} for {tag!r}"
    return "the calls themselves: more workers do not shorten the run"


def _aim(given: Explanation, binding: str | None) -> Iterator[str]:
    plan, problem = given.plan, given.problem
    if plan.objective is None:
        return
    if given.choice is None:
        yield f"Policy manual: the counts are the manifest's, whatever {plan.objective!r} asks for."
    else:
        within = ""
        if given.choice.in_time and given.deadline_name:
            assert plan.deadline_s is not None
            within = f" within {given.deadline_name}, {format_duration(plan.deadline_s)}"
        serves = _SERVES[plan.objective] + within
        yield f"Objective {plan.objective!r}, policy {plan.policy}: {serves}."
        yield f"Binding: {binding}."
        if plan.policy == "safe":
            planned = format_duration(problem.planned_s(given.choice.point.workers))
            yield (
                "Policy safe plans with the 80 % quantile of running times, and 20 % more work: "
                f"{planned} in all."
            )
        if not given.choice.in_time:
            yield (
                f"By this guess {given.deadline_name} does not hold: "
                f"it takes at least {format_duration(given.choice.least_s)}."
            )
    if plan.predicted_time_s is not None and plan.deadline_s is not None:
        if given.choice is None and plan.predicted_time_s > plan.deadline_s:
            limit = format_duration(plan.deadline_s)
            yield f"It does not end within {given.deadline_name}, {limit}."
        walltime_s = plan.scale_plan.resources_by_tag
        limits = [r.walltime_s for r in walltime_s.values() if r.walltime_s is not None]
        if limits and plan.predicted_time_s > min(limits):
            yield "It takes longer than the walltime of one job: workers are replaced on the way."


def _guesses(given: Explanation) -> Iterator[str]:
    named = given.spec.tasks
    guessed = [c for c in given.calls if c.guessed]
    busy = {c.tag for c in given.calls}
    idle = [tag for tag in given.spec.components if tag not in busy]
    if idle and given.choice is not None:
        shown = ", ".join(idle[:_SHOWN]) + (" and more" if len(idle) > _SHOWN else "")
        yield (
            f"No task names {shown}: nothing is planned for them but a worker each, if there is "
            "room. Add a task with `component` to the manifest."
        )
    if not guessed:
        return
    lacking = []
    for c in guessed[:_SHOWN]:
        if c.task not in named:
            lacking.append(
                f"a task with `component: {c.tag}`, `count` and `duration`, under `tasks`"
            )
            continue
        keys = ["count"] * (c.counted == "guess") + ["duration"] * (c.forecast.source == "guess")
        lacking.append(" and ".join(f"`tasks.{c.task}.{key}`" for key in keys))
    more = len(guessed) - len(lacking)
    names = ", ".join(repr(c.task) for c in guessed[:_SHOWN]) + (
        f" and {more} more" if more else ""
    )
    verb = "This is a guess" if given.plan.objective is not None else "No time is predicted"
    assumed = (
        f": calls of {format_duration(GUESSED_DURATION_S)} and {GUESSED_CALLS} for each worker "
        "are taken where nothing is known"
        if given.plan.objective is not None
        else ""
    )
    yield f"{verb}: no run was recorded and nothing is written of {names}{assumed}."
    yield f"Add to the manifest: {'; '.join(lacking)}."


def _work(given: Explanation) -> Iterator[str]:
    if given.plan.objective is None and given.plan.predicted_time_s is None:
        return
    sources = {"manifest": "by the manifest", "guess": "guessed"}
    known = [c for c in given.calls if c.count and not c.guessed]
    for c in known[:_SHOWN]:
        source = (
            sources.get(c.forecast.source)
            or f"from {counted(c.forecast.samples, 'call')} of earlier runs"
        )
        yield (
            f"{c.task}: {counted(c.count, 'call')} of {format_duration(c.forecast.mean_s)} "
            f"in pool {c.tag}, {source}."
        )
    if len(known) > _SHOWN:
        yield f"So do {len(known) - _SHOWN} more tasks; `tasks` of the plan lists them."


def _trust(given: Explanation) -> Iterator[str]:
    plan, past_predictions = given.plan, given.knowledge.past_predictions
    if plan.predicted_time_s is None:
        return
    low, high = BAND
    band = f"of a run that takes {low:g} to {high:g} times as long as predicted"
    if past_predictions:
        held = sum(low <= o.ratio / plan.overhead <= high for o in past_predictions)
        count = len(past_predictions)
        yield f"Confidence {band}: {held} of {count} earlier predictions would have held."
    elif not any(c.guessed for c in given.calls):
        share = evidence_of(given.calls)
        yield (
            f"Confidence {band}: no earlier prediction can be held against its run, and forecasts "
            f"count for {share:.0%} by the calls they rest on."
        )
    if overhead(past_predictions) != 1.0:
        yield (
            f"Earlier runs took {plan.overhead:.2f} times what their calls take; "
            "the prediction contains that."
        )


def _time(given: Explanation) -> Iterator[str]:
    plan, spec = given.plan, given.spec
    counts = plan.scale_plan.workers_by_tag
    if plan.predicted_time_s is None:
        waiting = dict.fromkeys(c.tag for c in given.calls if c.count and not counts[c.tag])
        if waiting:
            yield (
                f"No time is predicted: {', '.join(waiting)} has calls to run and begins with no "
                "worker."
            )
        return
    unknown = [tag for tag in spec.components if tag not in given.knowledge.startup_s]
    if given.knowledge.counts_startup and unknown:
        yield (
            f"How long workers of {', '.join(unknown[:_SHOWN])} take to start is not known yet, "
            "and not contained."
        )
    served = {tag: slots_of(spec, tag) * n for tag, n in counts.items()}
    for c in given.calls:
        room = served[c.tag]
        if 0 < c.count < room and given.choice is None:
            yield f"Pool {c.tag} has room for {room} calls at once; {c.task} has {c.count}."
            return


def _cost(given: Explanation) -> Iterator[str]:
    cost = given.plan.predicted_cost
    if cost is None:
        return
    if not given.problem.released and cost.held > _HELD * cost.expected:
        yield (
            f"The cost of {_amount(cost.expected, cost.unit)} counts workers while their pool has "
            f"work; if all stay until the end it is {_amount(cost.held, cost.unit)}. "
            "`adaptive` on the target lets idle ones go."
        )


def _amount(amount: float, unit: str) -> str:
    return f"{format_amount(amount, unit)} {unit}"


def _memory(given: Explanation) -> Iterator[str]:
    for advice in given.plan.memory_advice:
        key = f"components.{advice.tag}.memory"
        reserved, used = format_bytes(advice.reserved), format_bytes(advice.used)
        yield (
            f"{key} reserves {reserved}; 95 % of {advice.samples} calls used at most {used}: "
            f"{advice.written} would do."
            if advice.advised < advice.reserved
            else f"{key} reserves {reserved}; 5 % of {advice.samples} calls used more than {used}: "
            f"{advice.written} would be safe."
        )
