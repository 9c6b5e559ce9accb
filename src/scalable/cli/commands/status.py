"""``scalable status``."""

from __future__ import annotations

import click

from scalable.cli.clusters import cluster_data, name_argument, render_status
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.discovery import status


@click.command()
@name_argument
@output_options
def command(name: str, *, output: Output) -> int:
    """Show the state of a cluster, its pools and its managers."""
    found = status(name)
    output.show(Result(render_status(found), {"version": VERSION, **cluster_data(found)}))
    return 0
