"""Forecasts, task counts and prices for a plan, from the manifest and earlier runs.

Only this module combines run records, the task model and planning.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from scalable import settings
from scalable.model import CostEstimate, DeploymentSpec, Forecast, Rate, ScalePlan, TaskSpec
from scalable.planning import Knowledge, PastPrediction, Prices
from scalable.planning.plan import written_prices
from scalable.planning.variation import RunLevel, RunSpread
from scalable.providers.registry import provider_traits
from scalable.runs.history import CallRecord, EarlierRun, read_history
from scalable.scaling.task_model import (
    KEPT_SAMPLES,
    Expectation,
    Kind,
    Sample,
    TaskModel,
    size_bucket,
)

#: Number of latest runs from which the median number of tasks is taken.
RUNS_FOR_CALLS = 5
#: Key of the managers' machines in :attr:`scalable.model.CostEstimate.always`.
MANAGER = "manager"


def _is_here(spec: DeploymentSpec, run: EarlierRun) -> bool:
    return run.target == spec.target_name and run.provider in ("", spec.provider_name)


def _placed(
    spec: DeploymentSpec, history: Iterable[EarlierRun]
) -> list[tuple[str | None, CallRecord]]:
    """Return (target, measured task) pairs, latest first. ``target`` is None for the spec's own."""
    # Tasks of other targets count if none of their name ran on this target.
    calls = [(run, call) for run in history for call in reversed(run.calls)]
    here = {(call.tag, call.task) for run, call in calls if _is_here(spec, run)}
    found: list[tuple[str | None, CallRecord]] = []
    for run, call in calls:
        if _is_here(spec, run):
            found.append((None, call))
        elif (call.tag, call.task) not in here:
            same = run.target == spec.target_name
            found.append((f"{run.target} ({run.provider})" if same else run.target, call))
    return found


def _model(spec: DeploymentSpec, calls: Iterable[CallRecord]) -> TaskModel:
    """Return a task model with the manifest's expectations and the latest measured tasks."""
    # ``calls`` start with the latest. More than the model keeps of a kind are not added.
    numbers: Counter[Kind] = Counter()
    latest: list[Sample] = []
    for call in calls:
        kind = Kind(call.tag, call.task, size_bucket(call.input_bytes))
        numbers[kind] += 1
        if numbers[kind] <= KEPT_SAMPLES:
            latest.append(Sample(kind, call.duration_s, call.memory))
    expectations = {
        (task.component, task.name): Expectation(task.duration_s, task.memory_bytes)
        for task in spec.tasks.values()
        if task.duration_s is not None or task.memory is not None
    }
    return TaskModel(expectations, reversed(latest))


def _forecasts(
    spec: DeploymentSpec, history: Iterable[EarlierRun], tasks: Iterable[TaskSpec]
) -> dict[str, Forecast]:
    """Return the forecast of each task name, with the targets where it was measured."""
    placed = _placed(spec, history)
    model = _model(spec, (call for _, call in placed))
    measured: dict[tuple[str, str], Counter[str | None]] = defaultdict(Counter)
    for target, call in placed:
        measured[call.tag, call.task][target] += 1
    found = {}
    for task in tasks:
        key = (task.component, task.name)
        forecast = model.forecast(Kind(*key))
        if forecast.source == "history":
            # Without measured tasks of the name, the forecast is that of the component's other
            # names.
            own = [key] if key in measured else [k for k in measured if k[0] == task.component]
            targets = sum((measured[k] for k in own), Counter[str | None]())
            forecast = replace(
                forecast,
                measured_on={t or spec.target_name: number for t, number in targets.items()},
                elsewhere=None not in targets,
            )
        found[task.name] = forecast
    return found


def gather(
    spec: DeploymentSpec, prices: Prices | None = None, runs_dir: Path | None = None
) -> Knowledge:
    """Return a plan's inputs from the run records, and warn about unreadable ones."""
    where = settings.runs_dir() if runs_dir is None else runs_dir
    return knowledge_of(spec, read_history(where, spec.project_name), prices)


def knowledge_of(
    spec: DeploymentSpec, history: Sequence[EarlierRun], prices: Prices | None = None
) -> Knowledge:
    """Return a plan's inputs from earlier runs, given with the latest first."""
    traits = provider_traits(spec.provider_name)
    here = [run for run in history if _is_here(spec, run)]
    complete = [run for run in history if run.status == "completed" and run.whole]
    counts = _counts(complete)
    startups_s = _startups(here)
    listed, unlisted = _match(spec, counts)
    names = [*spec.tasks.values(), *unlisted]
    return Knowledge(
        forecasts=_forecasts(spec, history, names),
        calls=listed,
        busiest=_busiest(complete[:RUNS_FOR_CALLS]),
        unlisted=unlisted,
        startup_s={tag: median(seconds) for tag, seconds in startups_s.items()},
        startups_s=startups_s,
        overlaps=_overlaps(spec, complete),
        run_spread=RunSpread(levels=tuple(_levels(here))),
        past_predictions=_past_predictions(here),
        ran_here=any(run.calls for run in here),
        prices=prices,
        counts_startup=traits.counts_startup,
        starting=traits.starting,
        today=dt.datetime.now(dt.UTC).date(),
    )


def quoted_prices(
    provider: object, spec: DeploymentSpec, *, detached: bool = False
) -> Prices | None:
    """Return the prices of one worker of each component, or None if they are unknown.
    The manifest's prices take precedence. A ``detached`` cluster outlives its creator, so that
    its managers have machines.
    """
    written = written_prices(spec)
    estimate = getattr(provider, "estimate_cost", None)
    if estimate is None:
        return written
    # All remote providers have this option, because their managers may run on the user's machine.
    written_place = spec.options.get("manager")
    managers = written_place == "there" or (detached and written_place != "here")
    one_each = ScalePlan(
        dict.fromkeys(spec.components, 1), {tag: spec.resources(tag) for tag in spec.components}
    )
    found: CostEstimate | None = estimate(spec, one_each)
    if found is None:
        return written
    prices = Prices(
        {**found.by_tag, **{tag: rate.per_unit_hour for tag, rate in found.rates.items()}},
        found.currency,
        found.source,
        found.as_of,
        found.rates,
        {n: rate for n, rate in found.always.items() if managers or n != MANAGER},
        found.notes,
    )
    return prices if written is None else _overwritten(prices, written)


def _overwritten(prices: Prices, written: Prices) -> Prices:
    """Return a provider's prices, replaced by the manifest's where these exist."""
    rates = dict(prices.rates)
    for tag in written.hourly_by_tag.keys() & rates.keys():
        billed, hourly = rates[tag].price, written.hourly_by_tag[tag]
        rates[tag] = Rate(
            replace(
                billed,
                per_hour=hourly,
                spot_per_hour=None,
                date=None,
                source=written.source,
                origin="manifest",
            )
        )
    hourly_by_tag = {**prices.hourly_by_tag, **written.hourly_by_tag}
    source = written.source
    if any(tag not in written.hourly_by_tag for tag in prices.hourly_by_tag) or prices.always:
        source = f"{written.source}; {prices.source}"
    return replace(prices, hourly_by_tag=hourly_by_tag, rates=rates, source=source)


def _counts(runs: Iterable[EarlierRun]) -> dict[tuple[str, str], int]:
    """Map (tag, task name) to the median number of its tasks in the latest runs that had any."""
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in runs:
        for kind, count in run.counts.items():
            seen[kind].append(count)
    return {kind: round(median(found[:RUNS_FOR_CALLS])) for kind, found in seen.items()}


def _busiest(runs: Iterable[EarlierRun]) -> dict[str, int]:
    """Map each pool to the largest number of its tasks in one run."""
    found: dict[str, int] = {}
    for run in runs:
        of_run: dict[str, int] = defaultdict(int)
        for (tag, _), count in run.counts.items():
            of_run[tag] += count
        found |= {tag: max(count, found.get(tag, 0)) for tag, count in of_run.items()}
    return found


def _match(
    spec: DeploymentSpec, counts: Mapping[tuple[str, str], int]
) -> tuple[dict[str, int], list[TaskSpec]]:
    """Return task counts by manifest name, and the recorded tasks that the manifest does not name.
    Tasks routed by tag are recorded under their function's name. If a pool's only manifest name has
    no tasks in runs, tasks routed to the pool by tag count as tasks of that name.
    """
    listed = {
        task.name: counts[task.component, task.name]
        for task in spec.tasks.values()
        if (task.component, task.name) in counts
    }
    unlisted: list[TaskSpec] = []
    for tag in spec.components:
        own = [task for task in spec.tasks.values() if task.component == tag]
        others = {t: n for (at, t), n in counts.items() if at == tag and t not in spec.tasks}
        if len(own) == 1 and own[0].name not in listed and others:
            listed[own[0].name] = sum(others.values())
        if not own:
            unlisted += [TaskSpec(name, tag, count=n) for name, n in others.items()]
    return listed, _each_named_once(unlisted)


def _each_named_once(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the first task of each name, in order: one pool for each name."""
    found: dict[str, TaskSpec] = {}
    for task in tasks:
        found.setdefault(task.name, task)
    return list(found.values())


def _startups(runs: Iterable[EarlierRun]) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for tag, seconds in run.startups_s:
            seen[tag].append(seconds)
    return seen


def _overlaps(spec: DeploymentSpec, runs: Sequence[EarlierRun]) -> dict[tuple[str, str], float]:
    """Return the probability that tasks of two names overlap, by (earlier, later) name."""
    found = {}
    for later in spec.tasks.values():
        for name in later.after:
            earlier = spec.tasks.get(name)
            if earlier is None:
                continue
            keys = (earlier.component, earlier.name), (later.component, later.name)
            seen = [
                run.spans[keys[1]].overlaps(run.spans[keys[0]])
                for run in runs
                if all(key in run.spans and run.counts.get(key, 0) > 1 for key in keys)
            ]
            if seen:
                # The prior is that of Jeffreys: half a run with overlap, and half a run without.
                found[earlier.name, later.name] = (sum(seen) + 0.5) / (len(seen) + 1)
    return found


def _levels(runs: Iterable[EarlierRun]) -> list[RunLevel]:
    """Return how long each run's tasks took, relative to the same tasks' means over all runs."""
    by_run = [_lengths_of(run.calls) for run in runs if run.calls]
    everywhere = {
        kind: [length for lengths in by_run for length in lengths.get(kind, ())]
        for kind in {kind for lengths in by_run for kind in lengths}
        if sum(kind in lengths for lengths in by_run) > 1
    }
    mean = {kind: fmean(lengths) for kind, lengths in everywhere.items()}
    variance = {
        kind: fmean((length - mean[kind]) ** 2 for length in lengths)
        for kind, lengths in everywhere.items()
    }
    levels = []
    for lengths in by_run:
        compared = [kind for kind in lengths if mean.get(kind, 0.0) > 0]
        usual = sum(len(lengths[kind]) * mean[kind] for kind in compared)
        taken = sum(sum(lengths[kind]) for kind in compared)
        if usual > 0 and taken > 0:
            error = math.sqrt(sum(len(lengths[kind]) * variance[kind] for kind in compared))
            levels.append(RunLevel(math.log(taken / usual), error / usual))
    return levels


def _lengths_of(calls: Iterable[CallRecord]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for call in calls:
        found[call.tag, call.task].append(call.duration_s)
    return found


def _past_predictions(runs: Iterable[EarlierRun]) -> list[PastPrediction]:
    return [
        PastPrediction(run.predicted_s, run.span_s, run.overhead)
        for run in runs
        if run.status == "completed" and run.predicted_s and run.span_s
    ]
