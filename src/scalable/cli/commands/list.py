"""``scalable list``."""

from __future__ import annotations

import click

from scalable.cli.clusters import cluster_data, render_list
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result

#: Some plug-in could not say which clusters it knows.
INCOMPLETE = 3


@click.command("list")
@output_options
def command(*, output: Output) -> int:
    """Show all clusters, how they are, and what is left over.

    Detached ones, embedded ones of live processes, and resources without a record.

    Exit code 3 when a plug-in or a record could not be read; the others are shown all the same.
    """
    from scalable.lifecycle.discovery import list_clusters

    listing = list_clusters()
    for error in listing.errors:
        output.warn(error)
    data = {
        "version": VERSION,
        "clusters": [cluster_data(status) for status in listing],
        "errors": list(listing.errors),
    }
    output.show(Result(render_list(listing), data))
    return INCOMPLETE if listing.errors else 0
