"""``scalable manager``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable.cli.clusters import complete_cluster_or_file, read_counts
from scalable.cli.options import output_options, target_option
from scalable.cli.output import Output
from scalable.model import names
from scalable.session.request import Request


@click.group(no_args_is_help=False)
def command() -> None:
    """Start workers for a running cluster from another site."""


@command.command()
@click.argument("cluster", metavar="NAME_OR_FILE", shell_complete=complete_cluster_or_file)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The manifest; by default SCALABLE_MANIFEST, then ./scalable.yaml.",
)
@target_option("The target to provision on.")
@click.option("--id", "manager", required=True, help="Id of this manager within the cluster.")
@click.option(
    "--max", "limits", multiple=True, metavar="TAG=N", help="Maximum number of workers of a tag."
)
@click.option(
    "--priority", type=int, default=0, help="Managers with lower numbers get workers first."
)
@click.option(
    "--scheduler-address",
    metavar="HOST:PORT",
    help="Scheduler address for its workers, if it differs from the manager's own.",
)
@output_options
def attach(
    cluster: str,
    *,
    manifest: Path | None,
    target: str | None,
    manager: str,
    limits: tuple[str, ...],
    priority: int,
    scheduler_address: str | None,
    output: Output,
) -> int:
    """Provision workers for a cluster until interrupted.
    After Ctrl-C or SIGTERM, the manager stops once its workers have finished their tasks. A second
    signal stops it at once.
    """
    from scalable.session.detached import manage

    names.MANAGER.require(manager)
    request = Request.read(manifest, target)
    most = read_counts(limits)
    output.note(f"manager {manager!r} provisions on target {request.target!r}; Ctrl-C stops it")
    return manage(
        request,
        cluster,
        manager,
        limits=most,
        priority=priority,
        scheduler_address=scheduler_address,
    )
