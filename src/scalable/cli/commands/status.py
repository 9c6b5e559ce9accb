"""``scalable status``."""

from __future__ import annotations

import click

from scalable.cli.clusters import render_status
from scalable.cli.options import Command, optional_name_argument
from scalable.cli.output import Result
from scalable.clusters.discovery import only_cluster, status


@click.command(cls=Command)
@optional_name_argument
def command(name: str | None) -> Result:
    """Show the state of a cluster, its pools and its managers.
    NAME may be left out if there is only one cluster.
    """
    found = status(name or only_cluster())
    return Result(render_status(found), found.to_dict())
