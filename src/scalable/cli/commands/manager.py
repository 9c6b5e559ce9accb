"""``scalable manager``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from scalable.cli import options
from scalable.cli.output import Output, Result
from scalable.errors import ClusterError
from scalable.model import names


@click.group(cls=options.Group, no_args_is_help=False)
def command() -> None:
    """Restart a cluster's managers, or add one from another site."""


@command.command()
@click.argument("cluster", metavar="NAME|FILE", shell_complete=options.complete_cluster_or_file)
@options.manifest_option
@options.target_option("The target to provision on.")
@click.option(
    "--id", "manager", metavar="NAME", required=True, help="Id of this manager within the cluster."
)
@click.option(
    "--max", "limits", multiple=True, metavar="TAG=N", help="Maximum number of workers of a pool."
)
@click.option(
    "--priority",
    type=int,
    metavar="N",
    default=0,
    help="Managers with lower numbers get workers first.",
)
@click.option(
    "--scheduler-address",
    metavar="HOST:PORT",
    help="Address at which the workers reach the scheduler, if it differs from the manager's.",
)
def attach(
    cluster: str,
    *,
    manifest_file: Path | None,
    target: str | None,
    manager: str,
    limits: tuple[str, ...],
    priority: int,
    scheduler_address: str | None,
    output: Output,
) -> int:
    """Provision workers for a cluster until interrupted.
    FILE is an access file, which `scalable connect --export` writes.

    After Ctrl-C or SIGTERM, the manager stops once its workers have finished their tasks. A second
    signal stops it at once.
    """
    from scalable.session.detached import manage
    from scalable.session.request import Request

    names.MANAGER.require(manager)
    request = Request.read(manifest_file, target)
    most = options.read_counts(limits)
    output.note(f"manager {manager!r} starts workers on {request.target!r}; Ctrl-C stops it")
    return manage(
        request,
        cluster,
        manager,
        limits=most,
        priority=priority,
        scheduler_address=scheduler_address,
    )


@command.command()
@options.name_argument
def restart(name: str, *, output: Output) -> Result:
    """Restart the managers of a cluster that have stopped.
    They take over their workers, and running tasks are not interrupted.
    """
    from scalable.clusters.resuming import lost_elsewhere, reports, restart_managers
    from scalable.records import find

    directory = find(name)
    started = restart_managers(name)
    for manager in started:
        with suppress(ClusterError):
            if reports(directory, manager, restarted=True):
                continue
        output.warn(f"manager {manager!r} has not reported yet: see `scalable logs {name}`")
    lost = lost_elsewhere(directory)
    for manager in lost:
        output.warn(
            f"manager {manager!r}, attached by hand, does not answer: restart it where it ran, "
            f"with `scalable manager attach {name} --id {manager}`"
        )
    text = f"started manager {', '.join(started)}\n" if started else "all managers are running\n"
    if lost and not started:
        text = "no manager could be started from here\n"
    return Result(text, {"started": started})
