"""``scalable plan``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import Command, manifest_argument, target_option
from scalable.cli.output import Output, Result
from scalable.cli.plans import AskedPlan, plan_options
from scalable.model import Plan

LOCK_FILE = "manifest.lock"


@click.command(cls=Command)
@manifest_argument
@target_option("The target to plan for; by default SCALABLE_TARGET, local, or the only one.")
@click.option(
    "--dry-run",
    is_flag=True,
    expose_value=False,  # planning writes and contacts nothing in any case
    help="Contact nothing, and write nothing except --output.",
)
@plan_options(
    click.option(
        "--budget",
        type=float,
        metavar="AMOUNT",
        help="Maximum cost of the run, in the currency of the prices. Without --objective and "
        "--deadline, the quickest plan within it is chosen.",
    )
)
@click.option("--front", is_flag=True, help="Draw the choices between time and cost.")
@click.option(
    "--compare",
    "run",
    metavar="RUN",
    help="Compare a recorded run, such as `latest`, with its plan.",
)
@click.option(
    "--show-script", is_flag=True, help="Show the script that starts a worker, for each tag."
)
@click.option(
    "--show-manifests",
    is_flag=True,
    help="Show every object that would be sent to the backend; --output DIR writes files.",
)
@click.option(
    "--detached",
    is_flag=True,
    help="Plan a cluster as started by `scalable up`, including machines for its managers.",
)
def command(  # noqa: PLR0913 - what a user may say
    manifest: Path | None,
    target: str | None,
    *,
    front: bool,
    run: str | None,
    show_script: bool,
    show_manifests: bool,
    detached: bool,
    asked: AskedPlan,
    output: Output,
) -> Result:
    """Predict the workers, time and cost of a run, with reasons.
    With --output plan.json, the file contains the plan, and manifest.lock is written next to it.
    """
    if run is not None:
        from scalable.runs.overview import find_run
        from scalable.runs.reading import read_run
        from scalable.runs.report.comparison import render_comparison
        from scalable.runs.report.run_report import compare

        comparison = compare(read_run(find_run(settings.runs_dir(), run)))
        return Result(render_comparison(comparison), {"comparison": comparison.to_dict()})
    if front and set(asked.options) <= {"--policy"}:
        raise click.UsageError(
            "--front needs --objective, --deadline or --budget: without them there are no choices"
        )
    from scalable.session.request import Request

    request = Request.read(manifest, target)
    plan = request.plan(
        asked.objective,
        asked.policy,
        deadline=asked.deadline,
        budget=asked.budget,
        detached=detached,
    )
    for warning in request.validate().warnings:
        output.note(warning.render())
    if show_manifests:
        objects = request.objects(plan, detached=detached)
        files = {name: body.decode() for name, body in objects.items()}
        data = {"objects": [json.loads(text) for text in files.values()]}
        # A stream of YAML documents: each of them is JSON.
        return Result("---\n".join(files.values()), data, files=files)
    if front and not plan.front:
        output.note("policy manual uses the manifest's counts, so there are no choices to draw")
    return plan_result(plan, request.scripts() if show_script else {}, front=front)


def plan_result(
    plan: Plan, scripts: Mapping[str, str] | None = None, *, front: bool = False
) -> Result:
    """Return a result with a plan, its workers' scripts and, if ``front``, its alternatives."""
    from scalable.runs.report.plans import draw_front, plan_json, render_plan

    document = plan_json(plan)
    shown = [f"\n{draw_front(plan)}\n"] if front and plan.front else []
    shown += [f"\nScript of {tag}:\n{text}" for tag, text in (scripts or {}).items()]
    more = {"scripts": dict(scripts)} if scripts else {}
    return Result(
        render_plan(plan) + "".join(shown),
        {"plan": document, **more},
        document=document,
        companions={LOCK_FILE: f"{plan.manifest_lock}\n"},
    )
