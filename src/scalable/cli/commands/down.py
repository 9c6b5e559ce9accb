"""``scalable down``."""

from __future__ import annotations

import time

import click

from scalable.cli.options import Command, confirm, name_argument
from scalable.cli.output import Result
from scalable.clusters.ending import end
from scalable.errors import ClusterError, UnknownClusterError
from scalable.records import ClusterDirectory, find, status_of
from scalable.units import counted


@click.command(cls=Command)
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(name: str, *, yes: bool) -> Result:
    """Stop a cluster: its workers, managers and scheduler.
    A cluster that is already gone is not an error. Results that have not been fetched are lost.
    """
    try:
        directory = find(name)
        known_as, condition = _described(directory)
    except (UnknownClusterError, FileNotFoundError) as error:
        known = getattr(error, "hint", None)
        text = f"there is no cluster {name!r}" + (f" ({known})" if known else "")
        return Result(f"{text}: nothing to do\n", {"name": name, "id": None, "ended": False})
    confirm(f"Delete cluster {known_as!r} ({condition})?", yes=yes)
    ended = end(directory.id)
    words = "was deleted" if ended else "was already gone"
    data = {"name": known_as, "id": directory.id, "ended": ended}
    return Result(f"cluster {known_as!r} {words}\n", data)


def _described(directory: ClusterDirectory) -> tuple[str, str]:
    """Return a cluster's name and condition, or its id and the reason why they are unknown."""
    name = directory.id
    try:
        name = directory.record().name
        status = status_of(directory, time.time())
    except FileNotFoundError:
        raise
    except (ClusterError, OSError) as error:
        return name, str(error)
    running = sum(pool.running for pool in status.pools.values())
    return name, f"{status.state}, {counted(running, 'worker')}"
