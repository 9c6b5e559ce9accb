"""``scalable plan``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import manifest_argument, output_options, target_option
from scalable.cli.output import VERSION, Output, Result
from scalable.spec import CostEstimate, Plan, ResourceRequest

LOCK_FILE = "manifest.lock"
_HEADER = ("tag", "workers", "cpus", "memory", "gpus")


@click.command()
@manifest_argument
@target_option("The target to plan for; by default SCALABLE_TARGET, local, or the only one.")
@click.option("--dry-run", is_flag=True, help="Contact nothing and write nothing but --output.")
@click.option("--objective", metavar="TEXT", help="What to aim for, such as 'minimize cost'.")
@click.option("--policy", metavar="NAME", help="How far to go for it: safe, aggressive or manual.")
@click.option(
    "--show-script", is_flag=True, help="Show the script that starts a worker of each tag."
)
@output_options
def command(
    manifest: Path | None,
    target: str | None,
    *,
    dry_run: bool,
    objective: str | None,
    policy: str | None,
    show_script: bool,
    output: Output,
) -> int:
    """Say what a run will take: workers for each tag, and their cost.

    With --output plan.json the file holds the plan, and manifest.lock is written beside it.
    """
    from scalable.session import ScalableSession

    session = ScalableSession.from_yaml(settings.manifest_path(manifest), target)
    plan = session.plan(dry_run=dry_run, objective=objective, policy=policy)
    for warning in session.validate().warnings:
        output.note(warning.render())
    output.show(plan_result(plan, session.scripts() if show_script else {}))
    return 0


def plan_result(plan: Plan, scripts: Mapping[str, str] | None = None) -> Result:
    """Show a plan, and the scripts of its workers by tag."""
    document = plan.to_dict()
    shown = [f"\nScript of {tag}:\n{text}" for tag, text in (scripts or {}).items()]
    more = {"scripts": dict(scripts)} if scripts else {}
    return Result(
        render_plan(plan) + "".join(shown),
        {"version": VERSION, "plan": document, **more},
        document=document,
        companions={LOCK_FILE: f"{plan.manifest_lock}\n"},
    )


def render_plan(plan: Plan) -> str:
    """A plan as text."""
    from scalable.report.table import table

    counts, resources = plan.scale_plan.workers_by_tag, plan.scale_plan.resources_by_tag
    rows = [(tag, str(count), *_resources(resources.get(tag))) for tag, count in counts.items()]
    tasks = [f"  {task} -> {tag}" for task, tag in plan.task_to_component.items()]
    lines = [
        f"Target: {plan.target_name} (provider {plan.provider_name})",
        f"Cost:   {_cost(plan.cost_estimate)}",
        f"Lock:   {plan.manifest_lock}",
        "",
        "Workers:",
        *table(_HEADER, rows),
        *(["", "Tasks:", *tasks] if tasks else []),
    ]
    return "\n".join(lines) + "\n"


def _resources(request: ResourceRequest | None) -> tuple[str, str, str]:
    if request is None:
        return ("-", "-", "-")
    return (f"{request.cpus:g}", request.memory or "-", str(request.gpus))


def _cost(cost: CostEstimate | None) -> str:
    if cost is None:
        return "not known: no price is given"
    amount = f"{cost.hourly:.2f} {cost.currency} an hour"
    total = "" if cost.total is None else f", {cost.total:.2f} {cost.currency} in all"
    dated = f", {cost.as_of}" if cost.as_of else ""
    return amount + total + (f" ({cost.source}{dated})" if cost.source else "")
