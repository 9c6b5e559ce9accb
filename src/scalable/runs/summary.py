"""Dataclasses of a run's summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scalable.model.cache_outcomes import CacheTotals
from scalable.quantiles import Durations, Quantiles


@dataclass(frozen=True)
class TaskNameSummary:
    """Summary of the tasks of one name. Values that were not measured are None."""

    #: Number of tasks, without cache hits.
    count: int
    #: Tasks whose last final state is failed.
    failed: int
    #: Tags of the tasks, in alphabetical order.
    tags: tuple[str, ...]
    #: Running times (without queue time) of the tasks that succeeded or failed.
    duration_s: Durations | None
    queued_s: Quantiles | None
    #: Peak memory of one task, in bytes.
    peak_memory: Quantiles | None
    #: CPU seconds of all tasks together.
    cpu_s: float | None
    #: Number of cache hits.
    found: int = 0


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
class ScalingSummary:
    """Number of times a pool grew, and number of times it shrank."""

    scale_up: int = 0
    scale_down: int = 0


@dataclass(frozen=True)
class FailureClass:
    """Failures of one class, with the first failure as the example."""

    count: int
    message: str
    #: ``file:line in function``: the innermost frame outside installed packages. None without a
    #: traceback.
    frame: str | None
    task_id: str | None
    arguments: str | None = None
    worker: str | None = None
    #: Number of attempts of the example, see :class:`.FailureDetails`.
    tries: int = 1


@dataclass(frozen=True)
class FailureSummary:
    """Failures of tasks, workers and pools (not of the script), most frequent class first."""

    count: int = 0
    classes: Mapping[str, FailureClass] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
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
    #: Seconds until the run finished, or until its last row if no finish is recorded.
    duration_s: float | None
    #: Number of tasks by last final state (succeeded, failed, cancelled or found), or by last state
    #: if none is final.
    tasks: Mapping[str, int] = field(default_factory=dict)
    #: In the order of the first rows. ``workers`` (by tag) have the same order.
    task_names: Mapping[str, TaskNameSummary] = field(default_factory=dict)
    workers: Mapping[str, PoolSummary] = field(default_factory=dict)
    scaling: ScalingSummary = field(default_factory=ScalingSummary)
    #: Rows of ``scaling.jsonl``: each change of a pool's desired count, with source and reason.
    scaling_changes: tuple[Mapping[str, Any], ...] = ()
    failures: FailureSummary = field(default_factory=FailureSummary)
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
        return asdict(self, dict_factory=_with_lists)


def _with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in items}


# Costs --------------------------------------------------------------------------------------------

#: Event of the rows about the cost of a machine. The last row of a machine counts.
BILLED = "billed"
CURRENCY = "USD"


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


def cost_of(rows: Iterable[Mapping[str, Any]], plan: Mapping[str, Any]) -> CostSummary | None:
    """Return a run's cost from ``workers.jsonl`` and ``plan.json``, or None if not counted."""
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row.get("event") == BILLED and _number(row.get("cost")) is not None:
            last[str(row.get("manager")), str(row.get("worker"))] = row
    if not last:
        return None
    by_tag: dict[str, float] = {}
    by_manager: dict[str, float] = {}
    idle_by_tag: dict[str, float] = {}
    actual = idle = scheduler = 0.0
    budget = None
    for (manager, _), row in last.items():
        cost, unused = _number(row.get("cost")) or 0.0, _number(row.get("idle_cost")) or 0.0
        actual, idle = actual + cost, idle + unused
        if not manager:
            scheduler, budget = scheduler + cost, _number(row.get("budget"))
            continue
        tag = str(row.get("tag"))
        by_tag[tag] = by_tag.get(tag, 0.0) + cost
        by_manager[manager] = by_manager.get(manager, 0.0) + cost
        idle_by_tag[tag] = idle_by_tag.get(tag, 0.0) + unused
    planned, interval = _planned(plan)
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


def _planned(plan: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
    predicted = plan.get("predicted_cost")
    if not isinstance(predicted, Mapping) or predicted.get("unit") != CURRENCY:
        return None, None
    # The bill includes started workers. Older plans do not have it.
    billed = _number(predicted.get("billed"))
    between = predicted.get("interval" if billed is None else "billed_interval")
    bounds = [_number(value) for value in between] if isinstance(between, list) else []
    low, high = bounds if len(bounds) == 2 else (None, None)
    interval = None if low is None or high is None else (low, high)
    return _number(predicted.get("expected")) if billed is None else billed, interval


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e18 else None
