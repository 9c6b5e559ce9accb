"""``scalable resume``."""

from __future__ import annotations

import click

from scalable.cli.clusters import name_argument
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@name_argument
@output_options
def command(name: str, *, output: Output) -> int:
    """Restart the managers of a cluster that have stopped.
    They take over their workers, and running tasks are not interrupted.
    """
    from scalable.clusters.resuming import lost_elsewhere, resume
    from scalable.records import find

    directory = find(name)
    started = resume(name)
    lost = lost_elsewhere(directory)
    for manager in lost:
        output.warn(
            f"manager {manager!r}, attached by hand, does not answer: restart it where it ran, "
            f"with `scalable manager attach {name} --id {manager}`"
        )
    text = f"started manager {', '.join(started)}\n" if started else "all managers are running\n"
    if lost and not started:
        text = "no manager could be started from here\n"
    output.show(Result(text, {"version": VERSION, "started": started}))
    return 0
