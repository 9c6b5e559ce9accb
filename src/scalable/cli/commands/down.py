"""``scalable down``."""

from __future__ import annotations

import click

from scalable.cli.clusters import confirm, name_argument
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_options
def command(name: str, *, yes: bool, output: Output) -> int:
    """End a cluster: its workers, managers, scheduler, and its record.

    One that is gone already is fine. Results that nobody has fetched are lost.
    """
    from scalable.errors import UnknownClusterError
    from scalable.lifecycle.discovery import status
    from scalable.lifecycle.ending import end

    try:
        found = status(name)
    except (UnknownClusterError, FileNotFoundError) as error:
        known = getattr(error, "hint", None)
        text = f"there is no cluster {name!r}" + (f" ({known})" if known else "")
        data = {"version": VERSION, "name": name, "id": None, "ended": False}
        output.show(Result(f"{text}: nothing to do\n", data))
        return 0
    running = sum(pool.get("running", 0) for pool in found.pools.values())
    count = "1 worker" if running == 1 else f"{running} workers"
    confirm(f"End cluster {found.name!r} ({found.state}, {count})?", yes=yes)
    ended = end(found.id)
    data = {"version": VERSION, "name": found.name, "id": found.id, "ended": ended}
    words = "has ended" if ended else "was gone already"
    output.show(Result(f"cluster {found.name!r} {words}\n", data))
    return 0
