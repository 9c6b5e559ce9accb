"""Cost of a run, from its rows and its plan. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """Return the cost of a run from ``workers.jsonl`` and ``plan.json``, or None if not counted."""
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
