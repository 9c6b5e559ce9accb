"""``scalable rerun``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalable import settings
from scalable.cli.clusters import confirm
from scalable.cli.options import output_options, target_option
from scalable.cli.output import VERSION, Output, Result
from scalable.units import counted

if TYPE_CHECKING:
    from scalable.session.rerunning import RerunCall

_HEADER = ("call", "was", "now")
#: Largest number of characters of an error in the table.
_WIDTH = 60


@click.command()
@click.argument("run")
@click.option("--failed", is_flag=True, required=True, help="Run the calls that failed.")
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The manifest; by default SCALABLE_MANIFEST, then scalable.yaml.",
)
@target_option("The target to run on; by default that of the run.")
@click.option(
    "--workflow",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The script of the run, whose functions may have failed; by default workflow.py next to "
    "the manifest. It is not run.",
)
@click.option("--yes", is_flag=True, help="Do not ask before money is spent.")
@output_options
def command(
    run: str,
    *,
    failed: bool,
    manifest: Path | None,
    target: str | None,
    workflow: Path | None,
    yes: bool,
    output: Output,
) -> int:
    """Run the failed calls of a run again, without its script.

    They run with the code as it is now. RUN is the id of a run whose results were kept, the
    beginning of its id, or latest. The results are kept with those of the run, so that `scalable
    run --resume` finds them. The exit code is 0 if all calls succeeded, and 1 otherwise.
    """
    del failed
    from scalable.cli.resuming import WORKFLOW
    from scalable.cli.spending import costs_money, said_cost
    from scalable.session.request import Request
    from scalable.session.rerunning import FailedCalls
    from scalable.telemetry import find_run, read_run

    path = settings.manifest_path(manifest)
    directory = find_run(settings.runs_dir(), run)
    record = read_run(directory)
    found = FailedCalls(directory)
    request = Request.read(path, target or str(record.run.get("target")))
    if found.calls and request.spec.project_name != record.run.get("project"):
        raise click.UsageError(
            f"{directory.name} is a run of project {record.run.get('project')!r}, and {path} is "
            f"the manifest of {request.spec.project_name!r}"
        )
    calls: list[RerunCall] = []
    if found.calls:
        request.require_clusters()
        plan = request.plan()
        if costs_money(request.spec, plan):
            confirm(f"{said_cost(plan)} Run on {request.target!r}?", yes=yes)
        calls = found.run_again(request, plan, workflow or path.parent / WORKFLOW)
    data = {
        "version": VERSION,
        "run": directory.name,
        "calls": [call.to_dict() for call in calls],
    }
    output.show(Result(render(directory.name, calls), data))
    return 0 if all(call.succeeded for call in calls) else 1


def render(run: str, calls: Sequence[RerunCall]) -> str:
    """Return the table of calls as text."""
    from scalable.report.table import shorten, table

    if not calls:
        return f"{run} has no failed calls to run again\n"
    rows = [
        (shorten(call.call, _WIDTH), shorten(call.was, _WIDTH), shorten(call.now, _WIDTH))
        for call in calls
    ]
    succeeded = sum(call.succeeded for call in calls)
    last = f"{succeeded} of {counted(len(calls), 'failed call')} of {run} succeeded now"
    return "\n".join([*table(_HEADER, rows, width=None), last]) + "\n"
