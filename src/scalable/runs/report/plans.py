"""Display of plans as text, and as HTML for notebooks.
The front is the list of worker counts that a plan chose from, from the cheapest to the fastest.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.files import write_whole
from scalable.model import FrontPoint, Plan
from scalable.model.plan import confidence_in_words
from scalable.units import counted, format_amount, format_duration
from scalable.views.notebooks import in_notebook, limited
from scalable.views.page import Piece, text_of
from scalable.views.tables import Table, text_table

#: Maximum number of characters of the worker counts in the short form of a plan.
_REPR = 80


class ShownPlan(Plan):
    """Plan returned by a session, with display methods for ``print`` and notebooks."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a file as ``scalable plan --output`` does, and return its path.
        An existing file is replaced. ``session.start(path)`` and ``scalable run --plan`` read the
        file.
        """
        write_whole(Path(path).resolve(), json.dumps(plan_json(self), indent=2) + "\n")
        return Path(path)

    def __str__(self) -> str:
        return render_plan(self).rstrip("\n")

    def __repr__(self) -> str:
        counts = self.scale_plan.workers_by_tag
        shown = _counts(counts)
        if len(shown) > _REPR:
            shown = f"{counted(sum(counts.values()), 'worker')} in {counted(len(counts), 'pool')}"
        return f"<Plan for {self.target_name!r}: {shown}; time {_time(self)}>"

    def _repr_html_(self) -> str:
        return plan_html(self)


def render_plan(plan: Plan) -> str:
    """Return a plan as text."""
    tasks = [f"  {task} -> {tag}" for task, tag in plan.task_to_component.items()]
    pieces: list[Piece] = [
        {"facts": list(_facts(plan)), "wide": 11},
        {"title": "Workers"},
        {"table": _pools(plan, "tag")},
    ]
    if tasks:
        pieces += [{"title": "Tasks"}, {"block": "\n".join(tasks)}]
    if plan.reasons:
        pieces += [{"title": "Why"}, {"list": plan.reasons}]
    return text_of(pieces)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "Target", f"{plan.target_name} (provider {plan.provider_name})"
    if plan.objective:
        yield "Objective", f"{plan.objective}, policy {plan.policy}"
    yield "Time", _time(plan)
    if plan.startup_s is not None:
        yield "Start-up", f"{format_duration(plan.startup_s)} before that"
    yield "Cost", _cost(plan)
    yield "Digest", plan.manifest_lock


def _pools(plan: Plan, heading: str) -> Table:
    rows = []
    for tag, count in plan.scale_plan.workers_by_tag.items():
        asked = plan.scale_plan.resources_by_tag.get(tag)
        amounts: tuple[Any, ...] = ("-", "-", "-")
        if asked is not None:
            amounts = (f"{asked.cpus:g}", asked.memory or "-", asked.gpus)
        rows.append((tag, count, *amounts))
    return text_table((heading, "workers", "cpus", "memory", "gpus"), rows, empty="no pools")


def _time(plan: Plan) -> str:
    """Return the predicted time of the tasks. The start-up before them is shown apart."""
    if plan.predicted_time_s is None or plan.predicted_interval_s is None:
        return "not known"
    seconds = (plan.predicted_time_s, *plan.predicted_interval_s)
    about, low, high = (format_duration(after_startup(plan, value)) for value in seconds)
    return f"about {about}, {low} to {high} (confidence {confidence_in_words(plan.confidence)})"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON, with its time after the start-up, which texts and reports show."""
    seconds, ends = plan.predicted_time_s, plan.predicted_interval_s
    return {
        **plan.to_dict(),
        "time_s": None if seconds is None else after_startup(plan, seconds),
        "interval_s": None if ends is None else [after_startup(plan, end) for end in ends],
    }


def after_startup(plan: Plan, seconds: float) -> float:
    """Return a predicted time without the start-up that is part of it."""
    return max(0.0, seconds - (plan.startup_s or 0.0))


def _cost(plan: Plan) -> str:
    cost, predicted = plan.cost_estimate, plan.predicted_cost
    between = ""
    if predicted is not None:
        between = " to ".join(
            format_amount(end, predicted.unit) for end in predicted.billed_interval
        )
    if cost is None:
        if predicted is None:
            return "not known: no price is given"
        about = format_amount(predicted.billed, predicted.unit)
        return f"about {about} {predicted.unit}, {between}; no price is given"
    words = f"{format_amount(cost.hourly, cost.currency)} {cost.currency} an hour"
    if cost.total is not None:
        words += f", {format_amount(cost.total, cost.currency)} {cost.currency} in all"
    words += f" ({between})" if between else ""
    dated = f", {cost.as_of}" if cost.as_of else ""
    return words + (f" ({cost.source}{dated})" if cost.source else "")


# Plan as HTML for notebooks: counts, times, costs, front and reasons ------------------------------


#: Maximum number of rows of a table, and of reasons.
_ROWS, _REASONS = 40, 60


def plan_html(plan: Plan) -> str:
    """Return a plan as HTML."""
    pools, tasks = _pools(plan, "pool"), _tasks(plan)
    headings = ("", "workers", "time", "80 %", "cost", "80 % of cost")
    choices = _choices(plan, headings)
    facts = [(name, words[:12] if name == "Digest" else words) for name, words in _facts(plan)]
    pieces: list[Piece] = [
        {"head": ("Plan for", plan.target_name, "", "")},
        {"facts": facts},
        limited(pools, _ROWS, "pool"),
        *([limited(tasks, _ROWS, "task")] if tasks.rows else []),
    ]
    if choices.rows:
        shown = [{"table": choices}, {"text": " ".join(_remarks(plan))}]
        pieces.append({"details": "Choices of time and cost", "open": True, "pieces": shown})
    if plan.reasons:
        why = [{"list": plan.reasons[:_REASONS]}]
        pieces.append({"details": "Why", "open": True, "pieces": why})
    return in_notebook(pieces)


def _tasks(plan: Plan) -> Table:
    rows = []
    for name, tag in plan.task_to_component.items():
        known = plan.tasks.get(name)
        told: tuple[Any, ...] = ("-", "-", "-", "-")
        if known is not None:
            lasts = (format_duration(known.mean_s), format_duration(known.q95_s))
            told = (known.calls, *lasts, known.source)
        rows.append((name, tag, *told))
    headings = ("task", "pool", "tasks", "mean", "95 %", "known from")
    return text_table(headings, rows, left=("pool", "known from"), empty="no tasks")


# The front as text --------------------------------------------------------------------------------

_ACROSS, _UP = 60, 12
#: An axis is logarithmic if its largest value is at least this multiple of its smallest value.
_WIDE = 20.0
_LISTED = 12


def draw_front(plan: Plan) -> str:
    """Return a plan's front (at least one point) as text. Time grows to the right, cost upwards."""
    points, unit, chosen = _points(plan), _unit(plan), _chosen(plan)
    times, costs = [p.time_s for p in points], [p.cost for p in points]
    cells = [[" "] * _ACROSS for _ in range(_UP)]
    for point in sorted(points, key=lambda p: p == chosen):
        row = _UP - 1 - _position(point.cost, costs, _UP)
        cells[row][_position(point.time_s, times, _ACROSS)] = "@" if point == chosen else "*"
    labels = {0: format_amount(max(costs), unit), _UP - 1: format_amount(min(costs), unit)}
    width = max(len(label) for label in labels.values())
    first, last = format_duration(min(times)), format_duration(max(times))
    lines = [f"{labels.get(i, ''):>{width}} |{''.join(c).rstrip()}" for i, c in enumerate(cells)]
    lines.append(f"{'':>{width}} +{'-' * _ACROSS}")
    lines.append(f"{'':>{width}}  {first}{last:>{_ACROSS - len(first)}}")
    return "\n".join(
        [
            f"Choices (time to the right, {unit} upwards; @ is this plan):",
            *(f"  {line}" for line in lines),
            "",
            *_choices(plan, ("", "workers", "time", "80 %", unit, "80 %")).lines(),
            "",
            *(f"  {remark}" for remark in _remarks(plan)),
        ]
    )


def _remarks(plan: Plan) -> Iterator[str]:
    """Yield what the times and costs of a plan's choices mean."""
    yield "80 %: in four of five cases, time and cost are at most this."
    cost = plan.predicted_cost
    if cost is not None and cost.billed > cost.expected:
        yield "Costs are those if idle workers are released."


def _position(value: float, values: Sequence[float], cells: int) -> int:
    """Return the cell of a value on an axis from the smallest to the largest of all values."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= _WIDE:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return round((value - low) / (high - low) * (cells - 1)) if high > low else 0


def _choices(plan: Plan, headings: Sequence[str]) -> Table:
    return text_table(headings, front_rows(plan), left=("workers",), empty="no choices")


def front_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return rows of a plan's choices: workers, time and its 80 % quantile, cost and its quantile.
    They are evenly spaced, from cheapest to fastest. A mark ``@`` is before the chosen one.
    """
    points, unit, chosen = _points(plan), _unit(plan), _chosen(plan)
    step = max(1.0, (len(points) - 1) / (_LISTED - 1))
    listed = {round(i * step) for i in range(_LISTED)} | {len(points) - 1}
    return [
        (
            "@" if point == chosen else " ",
            _counts(point.workers_by_tag),
            format_duration(point.time_s),
            "-" if point.time_q80_s is None else format_duration(point.time_q80_s),
            format_amount(point.cost, unit),
            "-" if point.cost_q80 is None else format_amount(point.cost_q80, unit),
        )
        for place, point in enumerate(points)
        if place in listed or point == chosen
    ]


def _chosen(plan: Plan) -> FrontPoint | None:
    counts = dict(plan.scale_plan.workers_by_tag)
    return next((p for p in _points(plan) if dict(p.workers_by_tag) == counts), None)


def _points(plan: Plan) -> list[FrontPoint]:
    """Return the points of the front. Their times, as the plan's, are those after the start-up."""
    return [
        dataclasses.replace(
            point,
            time_s=after_startup(plan, point.time_s),
            time_q80_s=None if (late := point.time_q80_s) is None else after_startup(plan, late),
        )
        for point in plan.front
    ]


def _unit(plan: Plan) -> str:
    return plan.predicted_cost.unit if plan.predicted_cost is not None else "worker-seconds"


def _counts(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{tag} {count}" for tag, count in workers.items())
