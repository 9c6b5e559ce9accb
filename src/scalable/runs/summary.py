"""Summaries of runs, computed from their records. Incomplete rows are tolerated. Does no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from typing import Any

from scalable.model.cache_outcomes import CacheTally, CacheTotals
from scalable.model.codec import Noun
from scalable.model.costs import CURRENCY
from scalable.model.overview import MEASUREMENTS, TaskCounts, TaskOverview, TaskSums
from scalable.quantiles import Quantiles, Sum
from scalable.runs.calls import (
    FOUND,
    NO_TAG,
    REASON_CLOSED,
    REASON_LOST,
    Presence,
    RecordedTasks,
    outcomes_in,
    presences,
)
from scalable.runs.failed import FailureCause, causes
from scalable.runs.reading import RunRecord
from scalable.runs.streams import STREAMS, Row, mapping, number, text
from scalable.views.columns import TaskRow


@dataclass(frozen=True)
class PoolSummary:
    """Worker counts of one tag. ``started`` equals ``removed`` + ``final``."""

    started: int = 0
    #: Workers that left before the session closed.
    removed: int = 0
    #: Workers that stayed until the session closed.
    final: int = 0
    requested: int = 0
    #: Workers in ``removed`` that stopped unexpectedly.
    lost: int = 0
    lost_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary(Noun):
    """Summary of a run. None means unknown."""

    run_id: str
    project: str
    target: str
    provider: str
    #: Status, as in :class:`RunRecord`.
    status: str
    #: Start time (ISO 8601, UTC). ``ended_at`` has the same form.
    started_at: str | None
    ended_at: str | None
    #: Seconds of the session until it finished, or until its last row if no finish is recorded.
    duration_s: float | None
    #: Seconds of start-up, and from then until the last task finished. See
    #: :meth:`.RecordedTasks.work_parts`.
    startup_s: float | None = None
    time_s: float | None = None
    #: Number of tasks by last final state (succeeded, failed, cancelled or found), or by last state
    #: if none is final.
    tasks: Mapping[str, int] = field(default_factory=dict)
    #: In the order of the first rows. ``workers`` (by tag) have the same order.
    task_names: Mapping[str, TaskRow] = field(default_factory=dict)
    workers: Mapping[str, PoolSummary] = field(default_factory=dict)
    #: Numbers of times a pool grew (``scale_up``) and shrank (``scale_down``).
    scaling: Mapping[str, int] = field(default_factory=dict)
    #: Rows of ``scaling.jsonl``: each change of a pool's desired count, with source and reason.
    scaling_changes: tuple[Mapping[str, Any], ...] = ()
    #: Failures of tasks, workers and pools (not of the script), the most frequent cause first.
    failures: tuple[FailureCause, ...] = ()
    #: Costs, or None if no costs were counted.
    cost: CostSummary | None = None
    #: Rows of ``artifacts.jsonl``.
    artifacts: tuple[Mapping[str, Any], ...] = ()
    #: Ids of tasks that were started more than once.
    reruns: tuple[str, ...] = ()
    #: Number of reruns by reason, the most frequent first.
    rerun_reasons: Mapping[str, int] = field(default_factory=dict)
    #: Cache hits, misses with their reasons, and the time saved.
    remembered: CacheTotals = field(default_factory=CacheTotals)
    exit_code: int | None = None
    error: str | None = None
    #: Directory of the run.
    path: str = ""
    #: Number of unreadable lines of the record.
    malformed_lines: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        tasks = {name: _plain(row) for name, row in self.task_names.items()}
        plain = replace(self, failures=(), task_names={})
        return {**Noun.to_dict(plain), "task_names": tasks, "failures": _by_class(self.failures)}


def _plain(row: TaskRow) -> dict[str, Any]:
    counts = row.task.counts
    measured: dict[str, Any] = {}
    for each in MEASUREMENTS:
        tasks, total = row.task.sums[each.key]
        value = vars(row.quantiles[each.key]) if each.quantiles and tasks else total
        measured[each.key] = value if tasks else None
    first = {"count": row.count, "failed": counts.failed, "counts": counts.to_dict()}
    return {**first, "tags": list(row.tags), **measured, "found": counts.cached}


def _by_class(failures: Sequence[FailureCause]) -> dict[str, Any]:
    """Return the failures by class as JSON values, each with one failure as the example."""
    classes: dict[str, dict[str, Any]] = {}
    for cause in failures:
        example = cause.failures[0]
        told = {key: getattr(example.details, key) for key in ("arguments", "worker", "tries")}
        first = {"count": 0, "message": example.message, "frame": cause.frame}
        known = first | {"task_id": example.task_id} | told
        classes.setdefault(cause.failure_class, known)["count"] += cause.count
    ordered = sorted(classes.items(), key=lambda each: -each[1]["count"])
    return {"count": sum(cause.count for cause in failures), "classes": dict(ordered)}


# Costs --------------------------------------------------------------------------------------------

#: Event of the rows about the cost of a machine. The last row of a machine counts.
BILLED = "billed"


@dataclass(frozen=True)
class CostSummary:
    """Planned and actual cost of a run, in ``currency``."""

    actual: float
    #: Part of ``actual`` for time without tasks: starts, waiting, the rest of a billing minimum.
    idle: float
    #: Cost of the scheduler's machine, a part of ``actual``.
    scheduler: float = 0.0
    by_tag: Mapping[str, float] = field(default_factory=dict)
    by_manager: Mapping[str, float] = field(default_factory=dict)
    #: Cost of each tag's workers for time without tasks.
    idle_by_tag: Mapping[str, float] = field(default_factory=dict)
    planned: float | None = None
    #: Bounds that hold with a probability of 80 %, or None if no cost was predicted.
    planned_interval: tuple[float, float] | None = None
    budget: float | None = None
    currency: str = CURRENCY


def cost_of(rows: Iterable[Row], plan: Mapping[str, Any]) -> CostSummary | None:
    """Return a run's cost from ``workers.jsonl`` and ``plan.json``, or None if not counted."""
    last = {
        (str(row.get("manager")), str(row.get("worker"))): row
        for row in rows
        if row.get("event") == BILLED and number(row.get("cost")) is not None
    }
    if not last:
        return None
    by_tag, by_manager, idle_by_tag = (defaultdict[str, float](float) for _ in range(3))
    actual = idle = scheduler = 0.0
    budget = None
    for (manager, _), row in last.items():
        cost, unused = (number(row.get(key)) or 0.0 for key in ("cost", "idle_cost"))
        actual, idle = actual + cost, idle + unused
        if not manager:
            scheduler, budget = scheduler + cost, number(row.get("budget"))
            continue
        tag = str(row.get("tag"))
        by_tag[tag] += cost
        by_manager[manager] += cost
        idle_by_tag[tag] += unused
    planned, interval = planned_cost(plan)
    return CostSummary(
        actual=actual,
        idle=idle,
        scheduler=scheduler,
        by_tag=by_tag,
        by_manager=by_manager,
        idle_by_tag=idle_by_tag,
        planned=planned,
        planned_interval=interval,
        budget=budget,
    )


def planned_cost(plan: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the predicted cost of a plan with its bounds, or None for what it does not have."""
    predicted = mapping(plan.get("predicted_cost"))
    if predicted.get("unit") != CURRENCY:
        return None, None
    between = predicted.get("billed_interval")
    bounds = list(map(number, between)) if isinstance(between, list) else []
    low, high = bounds if len(bounds) == 2 else (None, None)
    interval = None if low is None or high is None else (low, high)
    return number(predicted.get("billed")), interval


# Computation --------------------------------------------------------------------------------------

_STATES = ("succeeded", "failed", "cancelled", FOUND, "running", "submitted", "blocked")


def summarize(record: RunRecord, tasks: RecordedTasks | None = None) -> Summary:
    """Return the summary of a run. Rows without the required keys are skipped."""
    run, calls = record.run, tasks or RecordedTasks(record.tasks)
    remembered, found = cached_in(record.remembered)
    by_name = calls.by_name()
    states = calls.states(chain.from_iterable(by_name.values()))
    actions = Counter(row.get("action") for row in record.scaling)
    reruns = calls.reruns()
    startup_s, time_s = calls.work_parts(record.workers) or (None, None)
    if hits := sum(tags.total() for tags in found.values()):
        states[FOUND] = hits
    order = [state for state in _STATES if state in states]
    started, ended = text(run.get("started_at")), text(run.get("ended_at"))
    exit_code = run.get("exit_code")
    return Summary(
        run_id=text(run.get("run_id")) or record.path.name,
        project=text(run.get("project")) or "",
        target=text(run.get("target")) or "",
        provider=text(run.get("provider")) or "",
        status=record.status,
        started_at=started,
        ended_at=ended,
        duration_s=_duration(started, ended, record, calls),
        startup_s=startup_s,
        time_s=time_s,
        tasks={state: states[state] for state in [*order, *sorted(states.keys() - set(_STATES))]},
        task_names={
            name: _task_row(name, calls, by_name.get(name, ()), found.get(name, Counter()))
            for name in dict.fromkeys([*by_name, *found])
        },
        workers=_pools(record.workers),
        scaling={key: actions[key.replace("_", "-")] for key in ("scale_up", "scale_down")},
        scaling_changes=tuple(record.scaling),
        failures=causes(record.failures),
        cost=cost_of(record.workers, record.plan),
        artifacts=tuple(record.artifacts),
        reruns=tuple(reruns),
        rerun_reasons=dict(Counter(chain.from_iterable(reruns.values())).most_common()),
        remembered=remembered,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error=text(run.get("error")),
        path=str(record.path),
        malformed_lines=record.malformed_lines,
    )


#: States of tasks in a record, and in an overview.
_COUNTED = {"succeeded": "done", "submitted": "queued", FOUND: "cached"}


def counts_of(states: Mapping[str, int]) -> TaskCounts:
    """Return the numbers of a run's tasks by state as in an overview."""
    counts: Counter[str] = Counter()
    for state, count in states.items():
        counts[_COUNTED.get(state, state)] += count
    return TaskCounts(**{state: counts[state] for state in vars(TaskCounts())})


def _task_row(
    name: str, calls: RecordedTasks, numbers: Sequence[int], found: Counter[str | None]
) -> TaskRow:
    tags = tuple(sorted(calls.tags(numbers) | {*filter(None, found)}))
    sums, quantiles = TaskSums(), {}
    for measurement in MEASUREMENTS:
        if values := calls.measured(measurement, numbers):
            sums[measurement.key] = Sum.of(values)
            if measurement.quantiles and (spread := Quantiles.of(values)):
                quantiles[measurement.key] = spread
    counts = replace(counts_of(calls.states(numbers)), cached=found.total())
    return TaskRow(TaskOverview(name, ", ".join(tags) or None, counts, sums), quantiles, tags)


def _pools(rows: Iterable[Row]) -> dict[str, PoolSummary]:
    asked = (text(row.get("tag")) or NO_TAG for row in rows if row.get("event") == "requested")
    requested = Counter(asked)
    pools: dict[str, list[Presence]] = {tag: [] for tag in requested}
    for each in sorted(presences(rows), key=attrgetter("begin")):
        pools.setdefault(each.tag, []).append(each)
    found = {}
    for tag, own in pools.items():
        removed = sum(each.reason not in (None, REASON_CLOSED) for each in own)
        lost = [each.reason or "" for each in own if each.lost]
        reasons = (reason.removeprefix(REASON_LOST).lstrip(": ") for reason in lost)
        found[tag] = PoolSummary(
            started=len(own),
            removed=removed,
            final=len(own) - removed,
            requested=requested[tag],
            lost=len(lost),
            lost_reasons=dict(Counter(reason or "reason not known" for reason in reasons)),
        )
    return found


def _duration(
    started: str | None, ended: str | None, record: RunRecord, calls: RecordedTasks
) -> float | None:
    start, end = epoch(started), epoch(ended)
    if end is None:
        others = (row for stream in STREAMS if stream != "tasks" for row in getattr(record, stream))
        moments = (calls.last_moment, *(number(row.get("timestamp")) for row in others))
        end = max((moment for moment in moments if moment is not None), default=None)
    return None if start is None or end is None else max(0.0, end - start)


def epoch(moment: object) -> float | None:
    """Return a recorded time (ISO 8601) in seconds since 1970, or None if it is none."""
    try:
        read = datetime.fromisoformat(str(moment))
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def cached_in(rows: Iterable[Row]) -> tuple[CacheTotals, dict[str, Counter[str | None]]]:
    """Return the totals of cache outcomes, and the number of hits by task name and tag."""
    tally = CacheTally()
    found: dict[str, Counter[str | None]] = {}
    for name, tag, outcome in outcomes_in(rows):
        tally.add(name, outcome)
        if outcome.is_hit:
            found.setdefault(name, Counter())[tag] += outcome.count
    return tally.totals(), found
