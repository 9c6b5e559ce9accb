"""``scalable top``."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from scalable.cli.clusters import cluster_data, complete_cluster
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.discovery import look, running_clusters
from scalable.errors import ClusterError
from scalable.records import find
from scalable.views.overview_tables import page
from scalable.views.workers import clusters_table
from scalable.watch.top.source import AllClusters

if TYPE_CHECKING:
    from scalable.clusters.discovery import RunningClusters
    from scalable.model.overview import Events, Overview

#: Width in columns of printed output.
WIDTH = 100


@click.command()
@click.argument("name", required=False, shell_complete=complete_cluster)
@click.option("--once", is_flag=True, help="Print the present state, and exit.")
@output_options
def command(name: str | None, *, once: bool, output: Output) -> int:
    """Watch pools, tasks, failures and costs in the terminal.
    NAME is a cluster, or a session in another process of yours, by its name or its run's name.
    Without NAME, list all running clusters and sessions. --once works without a terminal and
    without extras.
    """
    if not once:
        _run(name)
        return 0
    if name is not None:
        output.show(_page_result(*look(name)))
        return 0
    living = running_clusters()
    for error in living.errors:
        output.warn(error)
    output.show(_listed(living))
    return 0


def _run(name: str | None) -> None:
    if find_spec("textual") is None:
        raise ClusterError(
            "scalable top needs textual, which is not installed",
            hint="pip install textual; scalable top --once works without it",
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("standard output is not a terminal: scalable top --once prints text")

    if name is not None:
        find(name)
    from scalable.watch.top.app import TopApp

    TopApp(AllClusters(), name).run()


def _page_result(overview: Overview, events: Events) -> Result:
    told = {"decisions": list(events.decisions), "failures": list(events.failures)}
    data = {"version": VERSION, **overview.to_dict(), **told}
    return Result("\n".join(page(overview, events, WIDTH)) + "\n", data)


def _listed(living: RunningClusters) -> Result:
    table = clusters_table(living.clusters, living.runs, time.time())
    lines = table.lines(WIDTH) if table.rows else [table.empty]
    rows = [{**cluster_data(s), "run": living.runs.get(s.id)} for s in living.clusters]
    data = {"version": VERSION, "clusters": rows, "errors": list(living.errors)}
    return Result("\n".join(lines) + "\n", data)
