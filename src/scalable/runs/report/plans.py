"""Display of plans as text, and as HTML for notebooks."""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
from pathlib import Path
from typing import Any

from scalable.files import write_whole
from scalable.model import Plan, ResourceRequest
from scalable.model.plan import confidence_in_words
from scalable.runs.report.front import front_rows
from scalable.runs.report.table import table
from scalable.units import counted, format_amount, format_duration
from scalable.views.tables import Column, Table, row
from scalable.views.templates import in_notebook, render

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
        *_wrapped("Cost:      ", _cost(plan)),
        f"Digest:    {plan.manifest_lock}",
        "",
        "Workers:",
        *table(_HEADER, rows),
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
    if plan.predicted_time_s is None or plan.predicted_interval_s is None:
        return "not known"
    low, high = (format_duration(end) for end in plan.predicted_interval_s)
    about = format_duration(plan.predicted_time_s)
    return f"about {about}, {low} to {high} (confidence {confidence_in_words(plan.confidence)})"


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
_POOLS = (
    Column("pool"),
    *(Column(title, number=True) for title in ("workers", "cpus", "memory", "gpus")),
)
_TASKS = (
    Column("task"),
    Column("pool"),
    *(Column(title, number=True) for title in ("tasks", "mean", "95 %")),
    Column("known from"),
)
_CHOICES = (
    Column("workers"),
    *(Column(title, number=True) for title in ("time", "80 %", "cost", "80 % of cost")),
)


def plan_html(plan: Plan, *, time: str, cost: str) -> str:
    """Return a plan as HTML, with the predicted time and cost in words."""
    facts: list[tuple[str, Any]] = [
        ("Target", f"{plan.target_name} (provider {plan.provider_name})"),
        ("Time", time),
        ("Cost", cost),
        ("Digest", plan.manifest_lock[:12]),
    ]
    if plan.objective:
        facts.insert(1, ("Objective", f"{plan.objective}, policy {plan.policy}"))
    pools, tasks = _pools(plan), _tasks(plan)
    body = render(
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
    return in_notebook(body)


def _pools(plan: Plan) -> Table:
    rows = []
    for tag, count in plan.scale_plan.workers_by_tag.items():
        asked = plan.scale_plan.resources_by_tag.get(tag)
        amounts = ("-",) * 3
        if asked is not None:
            amounts = (f"{asked.cpus:g}", asked.memory or "-", str(asked.gpus))
        texts = (tag, count, *amounts)
        rows.append(row(tag, texts, texts, pool=tag))
    return Table(_POOLS, tuple(rows), "no pools")


def _tasks(plan: Plan) -> Table:
    rows = []
    for name, tag in plan.task_to_component.items():
        known = plan.tasks.get(name)
        told: tuple[Any, ...] = ("-", "-", "-", "-")
        if known is not None:
            lasts = (format_duration(known.mean_s), format_duration(known.q95_s))
            told = (known.calls, *lasts, known.source)
        texts = (name, tag, *told)
        rows.append(row(name, texts, texts, pool=tag))
    return Table(_TASKS, tuple(rows), "no tasks")


def _choices(plan: Plan) -> Table:
    """Return the choices of time and cost, with their 80 % quantiles."""
    rows = [row(texts[0], texts, texts) for texts in front_rows(plan)]
    return Table(_CHOICES, tuple(rows), "no choices")
