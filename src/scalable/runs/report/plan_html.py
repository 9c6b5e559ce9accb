"""Plan as HTML for notebooks: counts, times, costs, front and reasons."""

from __future__ import annotations

from typing import Any

from scalable.model import Plan
from scalable.runs.report.front import front_rows
from scalable.units import format_duration
from scalable.views.tables import Column, Table, row
from scalable.views.templates import in_notebook, render

#: Maximum number of rows of a table, and of reasons.
_ROWS, _REASONS = 40, 60
_POOLS = (
    Column("pool"),
    *(Column(title, number=True) for title in ("workers", "cpus", "memory", "gpus")),
)
_TASKS = (
    Column("task"),
    Column("pool"),
    *(Column(title, number=True) for title in ("calls", "mean", "95 %")),
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
        ("Lock", plan.manifest_lock[:12]),
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
