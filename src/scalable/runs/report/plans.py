"""Display of plans as text, and as HTML for notebooks.

The front is the list of worker counts that a plan chose from, from the cheapest to the fastest.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.files import write_whole
from scalable.model import FrontPoint, Plan, ResourceRequest
from scalable.model.plan import confidence_in_words
from scalable.units import counted, format_amount, format_duration
from scalable.views.tables import Table, text_table
from scalable.views.templates import in_notebook

#: Maximum width of the reasons in columns.
WIDTH = 100
#: Maximum number of characters of the worker counts in the short form of a plan.
_REPR = 80
_HEADER = ("tag", "workers", "cpus", "memory", "gpus")


class ShownPlan(Plan):
    """Plan returned by a session, with display methods for ``print`` and notebooks."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan to a file as ``scalable plan --output`` does, and return its path.
        An existing file is replaced. ``session.start(path)`` and ``scalable run --plan`` read the
        file.
        """
        write_whole(Path(path).resolve(), json.dumps(self.to_dict(), indent=2) + "\n")
        return Path(path)

    def __str__(self) -> str:
        return render_plan(self).rstrip("\n")

    def __repr__(self) -> str:
        counts = self.scale_plan.workers_by_tag
        shown = ", ".join(f"{tag} {count}" for tag, count in counts.items())
        if len(shown) > _REPR:
            shown = f"{counted(sum(counts.values()), 'worker')} in {counted(len(counts), 'pool')}"
        return f"<Plan for {self.target_name!r}: {shown}; time {_time(self)}>"

    def _repr_html_(self) -> str:

        return plan_html(self, time=_time(self), cost=_cost(self))


def shown_plan(plan: Plan) -> ShownPlan:
    """Return a plan with display methods for terminals and notebooks."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return ShownPlan(**values)


def render_plan(plan: Plan) -> str:
    """Return a plan as text."""
    counts, resources = plan.scale_plan.workers_by_tag, plan.scale_plan.resources_by_tag
    rows = [(tag, str(count), *_resources(resources.get(tag))) for tag, count in counts.items()]
    tasks = [f"  {task} -> {tag}" for task, tag in plan.task_to_component.items()]
    objective = f"Objective: {plan.objective}, policy {plan.policy}"
    lines = [
        f"Target:    {plan.target_name} (provider {plan.provider_name})",
        *([objective] if plan.objective else []),
        f"Time:      {_time(plan)}",
        *(f"{title}:  {words}" for title, words in _startup(plan)),
        *_wrapped("Cost:      ", _cost(plan)),
        f"Digest:    {plan.manifest_lock}",
        "",
        "Workers:",
        *text_table(_HEADER, rows).lines(WIDTH),
        *(["", "Tasks:", *tasks] if tasks else []),
        *(["", "Why:"] if plan.reasons else []),
        *(line for reason in plan.reasons for line in _wrapped("  - ", reason)),
    ]
    return "\n".join(lines) + "\n"


def _wrapped(first: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _time(plan: Plan) -> str:
    """Return the predicted time of the tasks. The start-up before them is shown apart."""
    if plan.predicted_time_s is None or plan.predicted_interval_s is None:
        return "not known"
    seconds = (plan.predicted_time_s, *plan.predicted_interval_s)
    about, low, high = (format_duration(after_startup(plan, value)) for value in seconds)
    return f"about {about}, {low} to {high} (confidence {confidence_in_words(plan.confidence)})"


def after_startup(plan: Plan, seconds: float) -> float:
    """Return a predicted time without the start-up that is part of it."""
    return max(0.0, seconds - (plan.startup_s or 0.0))


def _startup(plan: Plan) -> list[tuple[str, str]]:
    known = plan.startup_s
    return [] if known is None else [("Start-up", f"{format_duration(known)} before that")]


def _resources(request: ResourceRequest | None) -> tuple[str, str, str]:
    if request is None:
        return ("-", "-", "-")
    return (f"{request.cpus:g}", request.memory or "-", str(request.gpus))


def _cost(plan: Plan) -> str:
    cost, predicted = plan.cost_estimate, plan.predicted_cost
    between = ""
    if predicted is not None:
        ends = predicted.interval
        if cost is not None and predicted.billed_interval is not None:
            ends = predicted.billed_interval
        low, high = (format_amount(end, predicted.unit) for end in ends)
        between = f"{low} to {high}"
    if cost is None:
        if predicted is None:
            return "not known: no price is given"
        about = format_amount(predicted.expected, predicted.unit)
        return f"about {about} {predicted.unit}, {between}; no price is given"
    amount = f"{format_amount(cost.hourly, cost.currency)} {cost.currency} an hour"
    total = ""
    if cost.total is not None:
        total = f", {format_amount(cost.total, cost.currency)} {cost.currency} in all"
    total += f" ({between})" if between else ""
    dated = f", {cost.as_of}" if cost.as_of else ""
    return amount + total + (f" ({cost.source}{dated})" if cost.source else "")


# Plan as HTML for notebooks: counts, times, costs, front and reasons ------------------------------


#: Maximum number of rows of a table, and of reasons.
_ROWS, _REASONS = 40, 60


def plan_html(plan: Plan, *, time: str, cost: str) -> str:
    """Return a plan as HTML, with the predicted time and cost in words."""
    facts: list[tuple[str, Any]] = [
        ("Target", f"{plan.target_name} (provider {plan.provider_name})"),
        ("Time", time),
        *_startup(plan),
        ("Cost", cost),
        ("Digest", plan.manifest_lock[:12]),
    ]
    if plan.objective:
        facts.insert(1, ("Objective", f"{plan.objective}, policy {plan.policy}"))
    pools, tasks = _pools(plan), _tasks(plan)
    return in_notebook(
        "plan.html",
        target=plan.target_name,
        facts=facts,
        pools=pools.first(_ROWS),
        more_pools=max(0, len(pools.rows) - _ROWS),
        tasks=tasks.first(_ROWS),
        more_tasks=max(0, len(tasks.rows) - _ROWS),
        choices=_choices(plan),
        reasons=plan.reasons[:_REASONS],
    )


def _pools(plan: Plan) -> Table:
    rows = []
    for tag, count in plan.scale_plan.workers_by_tag.items():
        asked = plan.scale_plan.resources_by_tag.get(tag)
        amounts = ("-",) * 3
        if asked is not None:
            amounts = (f"{asked.cpus:g}", asked.memory or "-", str(asked.gpus))
        rows.append((tag, count, *amounts))
    return text_table(("pool", "workers", "cpus", "memory", "gpus"), rows, empty="no pools")


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


def _choices(plan: Plan) -> Table:
    """Return the choices of time and cost, with their 80 % quantiles."""
    headings = ("workers", "time", "80 %", "cost", "80 % of cost")
    return text_table(headings, front_rows(plan), empty="no choices")


# The front as text --------------------------------------------------------------------------------

_ACROSS, _UP = 60, 12
#: An axis is logarithmic if its largest value is at least this multiple of its smallest value.
_WIDE = 20.0
_LISTED = 12
_CHOSEN = "@ "


def draw_front(plan: Plan) -> str:
    """Return a plan's front (at least one point) as text. Time grows to the right, cost upwards."""
    points, unit = _points(plan), _unit(plan)
    chosen = _chosen(plan)
    cells = [[" "] * _ACROSS for _ in range(_UP)]
    across, up = _scales(points)
    for point in sorted(points, key=lambda p: p == chosen):
        column = round(across(point.time_s) * (_ACROSS - 1))
        row = _UP - 1 - round(up(point.cost) * (_UP - 1))
        cells[row][column] = "@" if point == chosen else "*"
    least, most = min(p.cost for p in points), max(p.cost for p in points)
    labels = {0: format_amount(most, unit), _UP - 1: format_amount(least, unit)}
    width = max(len(label) for label in labels.values())
    lines = [f"{labels.get(i, ''):>{width}} |{''.join(c).rstrip()}" for i, c in enumerate(cells)]
    first, last = (format_duration(f(p.time_s for p in points)) for f in (min, max))
    lines.append(f"{'':>{width}} +{'-' * _ACROSS}")
    lines.append(f"{'':>{width}}  {first}{last:>{_ACROSS - len(first)}}")
    return "\n".join(
        [
            f"Choices (time to the right, {unit} upwards; @ is this plan):",
            *(f"  {line}" for line in lines),
            "",
            *_front_lines(plan),
            "",
            "  80 %: in four of five cases, time and cost are at most this.",
        ]
    )


def _front_lines(plan: Plan) -> list[str]:
    """Return the choices as lines, with the mark before the chosen one."""
    rows, unit, wide = front_rows(plan), _unit(plan), len(_CHOSEN)
    head, *lines = text_table(
        ("workers", "time", "80 %", unit, "80 %"), [(row[0][wide:], *row[1:]) for row in rows]
    ).lines(WIDTH)
    marked = [f"  {row[0][:wide]}{line[2:]}" for row, line in zip(rows, lines, strict=True)]
    return [head.replace("workers", "workers" + " " * wide, 1), *marked]


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


def _listed(plan: Plan) -> list[FrontPoint]:
    """Return evenly spaced points of the front, including both ends and the chosen point."""
    points, chosen = _points(plan), _chosen(plan)
    step = max(1.0, (len(points) - 1) / (_LISTED - 1))
    places = {round(i * step) for i in range(_LISTED)} | {len(points) - 1}
    return [p for i, p in enumerate(points) if i in places or p == chosen]


def _row(point: FrontPoint, unit: str, chosen: FrontPoint | None) -> tuple[str, ...]:
    mark = _CHOSEN if point == chosen else " " * len(_CHOSEN)
    return (
        mark + _counts(point.workers_by_tag),
        format_duration(point.time_s),
        "-" if point.time_q80_s is None else format_duration(point.time_q80_s),
        format_amount(point.cost, unit),
        "-" if point.cost_q80 is None else format_amount(point.cost_q80, unit),
    )


def _counts(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{tag} {count}" for tag, count in workers.items())
