"""``scalable runs``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import DURATION, Command, Removal, removal_options, runs_dir_option
from scalable.cli.output import Output, Result
from scalable.runs.overview import RunOverview, chosen_runs, remove_runs, run_overviews
from scalable.units import counted, format_amount, format_duration
from scalable.views.tables import fitted, text_table

#: Paths and names are whole, so that they can be copied.
_WIDTH = 10_000
_HEADER = ("run", "project", "target", "state", "started", "duration", "cost", "tasks", "failed")
#: Maximum number of characters of the names of project and target in the table.
_NAME = 16


@click.command("runs", cls=Command)
@click.argument("action", required=False, type=click.Choice(["prune"]))
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Prune all but the last N.")
@click.option(
    "--older-than",
    type=DURATION,
    help="Prune runs that started more than DURATION ago, such as 30d. With --keep, the last N are "
    "kept.",
)
@removal_options
@runs_dir_option
def command(
    action: str | None,
    *,
    keep: int | None,
    older_than: float | None,
    removal: Removal,
    runs_dir: Path | None,
    output: Output,
) -> Result:
    """List the recorded runs, or remove old ones.
    The last run comes first. `prune` lists the runs that --keep and --older-than select, and
    removes them after a confirmation.

    A run that crashed is shown as interrupted. Running runs, and runs written to in the last two
    minutes, are never removed. Only run directories are removed.
    """
    limits = keep is not None or older_than is not None
    if action is None and (limits or removal.yes or removal.dry_run):
        raise click.UsageError("these options are for `scalable runs prune`, which removes runs")
    if action is not None and not limits:
        raise click.UsageError("give --keep N, --older-than DURATION, or both")
    where = (runs_dir or settings.runs_dir()).absolute()
    runs, faults = run_overviews(where)
    for fault in faults:
        output.warn(fault)
    if action is None:
        data = {"runs": [run.to_dict() for run in runs], "unreadable": faults}
        return Result(_rendered(runs) if runs else f"{where} contains no recorded run\n", data)
    chosen, kept = chosen_runs(runs, keep=keep, older_than_s=older_than)
    removed, text = [one.run_id for one in chosen], "nothing to remove\n"
    if chosen:
        rows, of_all = _rendered(chosen), f"{counted(len(chosen), 'run')} of {len(runs)}"
        text = f"{rows}{of_all} would be removed\n"
        question = f"Remove {of_all}? Later plans will not use them."
        if removal.approved(rows, question, output):
            removed, others = remove_runs(chosen)
            kept |= others
            number = counted(len(removed), "run")
            text = f"removed {number}\n" if removed else "nothing was removed\n"
    for run_id, reason in kept.items():
        output.warn(f"{run_id} is not removed: {reason}")
    told = [{"run_id": run_id, "reason": reason} for run_id, reason in kept.items()]
    data = {"removed": removed, "kept": told}
    return Result(text, {**data, "dry_run": removal.dry_run})


def _rendered(runs: Sequence[RunOverview]) -> str:
    rows = [
        (
            run.run_id,
            fitted(run.project, _NAME),
            fitted(run.target, _NAME),
            run.state,
            _moment(run.started_at),
            None if run.duration_s is None else format_duration(run.duration_s),
            None
            if run.cost is None
            else f"{format_amount(run.cost, run.currency or '')} {run.currency or ''}".strip(),
            run.tasks,
            run.failed,
        )
        for run in runs
    ]
    return "\n".join(text_table(_HEADER, rows).lines(_WIDTH)) + "\n"


def _moment(text: str | None) -> str | None:
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M}"
    except ValueError:
        return None
