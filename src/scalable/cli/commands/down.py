"""``scalable down``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from scalable.cli.options import Command, confirm, name_argument
from scalable.cli.output import Result
from scalable.clusters.ending import end
from scalable.errors import ClusterError, UnknownClusterError
from scalable.records import find, status_of
from scalable.units import counted

if TYPE_CHECKING:
    from scalable.records import ClusterDirectory


@click.command(cls=Command)
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(name: str, *, yes: bool) -> Result:
    """Stop a cluster: its workers, managers and scheduler.
    A cluster that is already gone is not an error. Results that have not been fetched are lost.
    """
    try:
        directory = find(name)
        known_as = _name(directory)
        question = f"Delete cluster {known_as!r} ({_how_it_is(directory)})?"
    except (UnknownClusterError, FileNotFoundError) as error:
        known = getattr(error, "hint", None)
        text = f"there is no cluster {name!r}" + (f" ({known})" if known else "")
        data = {"name": name, "id": None, "ended": False}
        return Result(f"{text}: nothing to do\n", data)
    confirm(question, yes=yes)
    ended = end(directory.id)
    data = {"name": known_as, "id": directory.id, "ended": ended}
    words = "has ended" if ended else "was already gone"
    return Result(f"cluster {known_as!r} {words}\n", data)


def _name(directory: ClusterDirectory) -> str:
    """Return the name of a cluster, or its id if its record is unreadable."""
    try:
        return directory.record().name
    except ClusterError:
        return directory.id


def _how_it_is(directory: ClusterDirectory) -> str:
    """Return the state and the number of workers, or the reason why they are unknown."""
    try:
        status = status_of(directory, time.time())
    except FileNotFoundError:
        raise
    except (ClusterError, OSError) as error:
        return str(error)
    running = sum(pool.running for pool in status.pools.values())
    return f"{status.state}, {counted(running, 'worker')}"
