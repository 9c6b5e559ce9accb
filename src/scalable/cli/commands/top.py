"""``scalable top``."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import click

from scalable.cli.options import Command, optional_name_argument
from scalable.cli.output import Output, Result
from scalable.clusters.discovery import look, running_clusters
from scalable.errors import ClusterError
from scalable.records import find
from scalable.views.cluster_text import page
from scalable.views.columns import clusters_table


@click.command(cls=Command)
@optional_name_argument
@click.option("--once", is_flag=True, help="Print the current state and exit.")
def command(name: str | None, *, once: bool, output: Output) -> Result | None:
    """Watch pools, tasks, failures and costs in the terminal.
    NAME is the name of a cluster, or of a session in another of your processes, or of the session's
    run. Without NAME, list all running clusters and sessions. --once needs neither a terminal nor
    the package textual.
    """
    if not once:
        _run(name)
        return None
    if name is not None:
        overview, events = look(name)
        told = {"decisions": list(events.decisions), "failures": list(events.failures)}
        text = "\n".join(page(overview, events)) + "\n"
        return Result(text, {**overview.to_dict(), **told})
    living = running_clusters()
    for error in living.errors:
        output.warn(error)
    table = clusters_table(living.clusters, living.runs, time.time(), "once")
    lines = table.lines() if table.rows else [table.empty]
    rows = [{**s.to_dict(), "run": living.runs.get(s.id)} for s in living.clusters]
    data = {"clusters": rows, "errors": list(living.errors)}
    return Result("\n".join(lines) + "\n", data)


def _run(name: str | None) -> None:
    if find_spec("textual") is None:
        raise ClusterError(
            "scalable top needs textual, which is not installed",
            hint="pip install textual; scalable top --once works without it",
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("standard output is not a terminal: use scalable top --once")

    if name is not None:
        find(name)
    from scalable.watch.top import TopApp

    TopApp(name).run()
