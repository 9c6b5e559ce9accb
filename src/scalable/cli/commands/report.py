"""``scalable report``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import Command, runs_dir_option
from scalable.cli.output import Result
from scalable.runs.failed import causes, failed_json, render_failed
from scalable.runs.overview import find_run
from scalable.runs.reading import read_run
from scalable.runs.report.comparison import render_two_runs
from scalable.runs.report.run_report import report_on

HTML = "html"
_SUFFIXES = frozenset({".html", ".htm"})


@click.command(cls=Command, extra=(HTML, "one HTML page (also by the suffix .html of the file)"))
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--latest", is_flag=True, hidden=True)
@click.option("--run-id", hidden=True)
@click.option("--compare", nargs=2, metavar="RUN RUN", help="Compare two runs.")
@runs_dir_option
@click.option("--failed", is_flag=True, help="List the failures, with one example of each cause.")
@click.option("--all", "every", is_flag=True, help="With --failed: show every failure.")
def command(  # noqa: PLR0913 - what a user may say
    run: str | None,
    *,
    latest: bool,
    run_id: str | None,
    compare: tuple[str, str] | None,
    runs_dir: Path | None,
    failed: bool,
    every: bool,
    form: str | None,
    destination: Path | None,
) -> Result:
    """Report on a recorded run: tasks, workers, failures, results.
    RUN is its id, a unique prefix of the id, or `latest` (the default). With --format html, the
    report is one self-contained file with the plan, the timeline, quantiles, pools, decisions,
    failures, environment and advice.
    """
    if sum((latest, run is not None, run_id is not None)) > 1:
        raise click.UsageError("RUN, --run-id and --latest exclude each other; give one of them")
    run = run or run_id
    if compare is not None and (latest or failed or run is not None):
        raise click.UsageError("--compare takes two runs: leave out RUN and --failed")
    where = (runs_dir or settings.runs_dir()).absolute()
    suffix = "" if destination is None else destination.suffix.lower()
    as_page = form == HTML or (form is None and suffix in _SUFFIXES)
    if compare is not None:
        if as_page:
            raise click.UsageError("a comparison cannot be shown as HTML: leave out --format html")
        first, second = (report_on(read_run(find_run(where, name))) for name in compare)
        rows = first.compared_with(second)
        pairs = {name: {"first": one, "second": two} for name, (one, two) in rows.items()}
        return Result(render_two_runs(rows), {"comparison": pairs})
    if every and not failed:
        raise click.UsageError("--all requires --failed: add --failed, or leave out --all")
    record = read_run(find_run(where, run))
    if failed:
        if as_page:
            raise click.UsageError("--failed has no HTML output: leave out --format html")
        found, run_id = causes(record.failures), str(record.run.get("run_id") or record.path.name)
        return Result(render_failed(run_id, found, every=every), failed_json(run_id, found))
    report = report_on(record)
    return Result(report.to_html() if as_page else str(report), report.to_dict())
