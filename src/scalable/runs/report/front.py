"""Drawing of a plan's Pareto front, as text.

The front is the list of worker counts that a plan chose from, from the cheapest to the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scalable.model import FrontPoint, Plan
from scalable.runs.report.table import table
from scalable.units import format_amount, format_duration

_COLUMNS, _ROWS = 60, 12
#: An axis is logarithmic if its largest value is at least this multiple of its smallest value.
_WIDE = 20.0
_LISTED = 12


def draw_front(plan: Plan) -> str:
    """Return a plan's front (at least one point) as text. Time grows to the right, cost upwards."""
    points, unit = plan.front, _unit(plan)
    chosen = _chosen(plan)
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    across, up = _scales(points)
    for point in sorted(points, key=lambda p: p is chosen):
        column = round(across(point.time_s) * (_COLUMNS - 1))
        row = _ROWS - 1 - round(up(point.cost) * (_ROWS - 1))
        cells[row][column] = "@" if point is chosen else "*"
    least, most = min(p.cost for p in points), max(p.cost for p in points)
    labels = {0: format_amount(most, unit), _ROWS - 1: format_amount(least, unit)}
    width = max(len(label) for label in labels.values())
    lines = [f"{labels.get(i, ''):>{width}} |{''.join(c).rstrip()}" for i, c in enumerate(cells)]
    first, last = (format_duration(f(p.time_s for p in points)) for f in (min, max))
    lines.append(f"{'':>{width}} +{'-' * _COLUMNS}")
    lines.append(f"{'':>{width}}  {first}{last:>{_COLUMNS - len(first)}}")
    return "\n".join(
        [
            f"Choices (time to the right, {unit} upwards; @ is this plan):",
            *(f"  {line}" for line in lines),
            "",
            *table(
                ("workers", "time", "80 %", unit, "80 %"),
                front_rows(plan),
            ),
            "",
            "  80 %: in four of five cases, time and cost are at most this.",
        ]
    )


def front_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return rows of a plan's choices: workers, time and its 80 % quantile, cost and its quantile.
    They are evenly spaced, from cheapest to fastest. The chosen one starts with ``@``.
    """
    unit, chosen = _unit(plan), _chosen(plan)
    return [_row(point, unit, chosen) for point in _listed(plan)]


def _scales(points: Sequence[FrontPoint]) -> tuple[_Scale, _Scale]:
    return _Scale([p.time_s for p in points]), _Scale([p.cost for p in points])


class _Scale:
    """Axis that maps the smallest value to 0 and the largest value to 1."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low, self._high = min(values), max(values)
        self._wide = self._low > 0 and self._high / self._low >= _WIDE

    def __call__(self, value: float) -> float:
        if self._high == self._low:
            return 0.0
        if self._wide:
            return math.log(value / self._low) / math.log(self._high / self._low)
        return (value - self._low) / (self._high - self._low)


def _chosen(plan: Plan) -> FrontPoint | None:
    counts = dict(plan.scale_plan.workers_by_tag)
    return next((p for p in plan.front if dict(p.workers_by_tag) == counts), None)


def _unit(plan: Plan) -> str:
    return plan.predicted_cost.unit if plan.predicted_cost is not None else "worker-seconds"


def _listed(plan: Plan) -> list[FrontPoint]:
    """Return evenly spaced points of the front, including both ends and the chosen point."""
    points, chosen = plan.front, _chosen(plan)
    step = max(1.0, (len(points) - 1) / (_LISTED - 1))
    places = {round(i * step) for i in range(_LISTED)} | {len(points) - 1}
    return [p for i, p in enumerate(points) if i in places or p is chosen]


def _row(point: FrontPoint, unit: str, chosen: FrontPoint | None) -> tuple[str, ...]:
    mark = "@ " if point is chosen else "  "
    return (
        mark + _counts(point.workers_by_tag),
        format_duration(point.time_s),
        "-" if point.time_q80_s is None else format_duration(point.time_q80_s),
        format_amount(point.cost, unit),
        "-" if point.cost_q80 is None else format_amount(point.cost_q80, unit),
    )


def _counts(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{tag} {count}" for tag, count in workers.items())
