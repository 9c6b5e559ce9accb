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
    """Start the managers of a cluster again that are gone.

    They take over their workers; what runs goes on.
    """
    from scalable.lifecycle.resuming import lost_elsewhere, resume
    from scalable.records import find

    directory = find(name)
    started = resume(name)
    lost = lost_elsewhere(directory)
    for manager in lost:
        output.warn(
            f"nothing was heard of manager {manager!r}: it was attached by hand, and comes back "
            f"with `scalable manager attach {name} --id {manager}` where it ran"
        )
    text = f"started manager {', '.join(started)}\n" if started else "every manager is there\n"
    if lost and not started:
        text = "nothing could be started from here\n"
    output.show(Result(text, {"version": VERSION, "started": started}))
    return 0
