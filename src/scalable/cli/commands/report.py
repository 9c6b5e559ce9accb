"""``scalable report``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import output_options
from scalable.cli.output import Output, Result


@click.command()
@click.option("--latest", is_flag=True, help="Report the run that started last (the default).")
@click.option(
    "--run-id", metavar="ID", help="Report the run with this id, or whose id begins like this."
)
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the runs; by default SCALABLE_RUNS_DIR, then .scalable/runs.",
)
@output_options
def command(*, latest: bool, run_id: str | None, runs_dir: Path | None, output: Output) -> int:
    """Report on a recorded run: tasks, workers, failures, results."""
    from scalable import report

    if latest and run_id is not None:
        raise click.UsageError("--latest and --run-id exclude each other; give one of them")
    where = (runs_dir or settings.runs_dir()).absolute()
    summary = report.build(where, run_id)
    output.show(Result(report.render_human(summary), report.render_json(summary)))
    return 0
