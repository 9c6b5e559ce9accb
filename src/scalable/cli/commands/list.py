"""``scalable list``."""

from __future__ import annotations

import click

from scalable.cli.clusters import render_list
from scalable.cli.options import Command
from scalable.cli.output import Output, Result

#: Exit code when a plug-in or a record could not be read.
INCOMPLETE = 3


@click.command("list", cls=Command)
def command(*, output: Output) -> Result:
    """List all clusters with their state.
    These are detached clusters, clusters embedded in running processes, and resources without a
    record.

    The exit code is 3 if a plugin or a record cannot be read. The others are still listed.
    """
    from scalable.clusters.discovery import list_clusters

    listing = list_clusters()
    for error in listing.errors:
        output.warn(error)
    data = {"clusters": [status.to_dict() for status in listing], "errors": list(listing.errors)}
    return Result(render_list(listing), data, exit_code=INCOMPLETE if listing.errors else 0)
