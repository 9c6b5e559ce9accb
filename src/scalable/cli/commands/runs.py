"""``scalable runs``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalable import settings
from scalable.cli.clusters import confirm
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result
from scalable.runs import chosen_runs, remove_runs, run_overviews
from scalable.runs.report.table import shorten, table
from scalable.units import counted, format_amount, format_duration, parse_duration

if TYPE_CHECKING:
    from scalable.runs import RunOverview

_HEADER = ("run", "project", "target", "state", "started", "duration", "cost", "tasks", "failed")
_MISSING = "-"
#: Maximum number of characters of the names of project and target in the table.
_NAME = 16
#: Maximum number of runs that the question names.
_NAMED = 5


class _Age(click.ParamType):  # type: ignore[type-arg]
    name = "age"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("runs")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Remove all but the last N.")
@click.option(
    "--older-than",
    type=_Age(),
    metavar="AGE",
    help="Remove runs that started more than AGE ago, such as 30d; with --keep, only those "
    "not among the last N.",
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the runs; by default SCALABLE_RUNS_DIR, then .scalable/runs.",
)
@output_options
def command(
    *,
    keep: int | None,
    older_than: float | None,
    yes: bool,
    runs_dir: Path | None,
    output: Output,
) -> int:
    """List the recorded runs, or remove old ones.
    The last run comes first. With --keep or --older-than, runs are removed after a confirmation.

    A run that crashed is shown as interrupted. Running runs, and runs written to in the last two
    minutes, are never removed. Only run directories are removed.
    """
    where = (runs_dir or settings.runs_dir()).absolute()
    runs, faults = run_overviews(where)
    for fault in faults:
        output.warn(fault)
    if keep is not None or older_than is not None:
        return _prune(runs, keep, older_than, yes=yes, output=output)
    data = {"version": VERSION, "runs": [run.to_dict() for run in runs], "unreadable": faults}
    text = render_runs(runs) if runs else f"{where} contains no recorded run\n"
    output.show(Result(text, data))
    return 0


def render_runs(runs: Sequence[RunOverview]) -> str:
    """Format the table of runs."""
    rows = [
        (
            run.run_id,
            shorten(run.project, _NAME),
            shorten(run.target, _NAME),
            run.state,
            _moment(run.started_at),
            _MISSING if run.duration_s is None else format_duration(run.duration_s),
            _MISSING
            if run.cost is None
            else f"{format_amount(run.cost, run.currency or '')} {run.currency or ''}".strip(),
            _MISSING if run.calls is None else str(run.calls),
            _MISSING if run.failed is None else str(run.failed),
        )
        for run in runs
    ]
    return "\n".join(table(_HEADER, rows, width=None)) + "\n"


def _moment(text: str | None) -> str:
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M}"
    except ValueError:
        return _MISSING


def _prune(
    runs: Sequence[RunOverview],
    keep: int | None,
    older_than: float | None,
    *,
    yes: bool,
    output: Output,
) -> int:
    chosen, kept = chosen_runs(runs, keep=keep, older_than_s=older_than)
    removed: list[str] = []
    if chosen:
        names = ", ".join(run.run_id for run in chosen[:_NAMED])
        more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
        confirm(
            f"Remove {counted(len(chosen), 'run')} of {len(runs)}: {names}{more}? "
            "Plans no longer learn from them.",
            yes=yes,
        )
        removed, others = remove_runs(chosen)
        kept += others
    for one in kept:
        output.warn(f"{one.run_id} stays: {one.reason}")
    text = f"removed {counted(len(removed), 'run')}\n" if removed else "nothing was removed\n"
    data = {"version": VERSION, "removed": removed, "kept": [asdict(one) for one in kept]}
    output.show(Result(text, data))
    return 0
