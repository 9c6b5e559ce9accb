"""``scalable scale``."""

from __future__ import annotations

import click

from scalable.cli.clusters import confirm, name_argument, read_counts
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@name_argument
@click.argument("counts", nargs=-1, required=True, metavar="TAG=N...")
@click.option(
    "--yes", is_flag=True, help="Do not ask, not even when the target's max_workers is exceeded."
)
@output_options
def command(name: str, counts: tuple[str, ...], *, yes: bool, output: Output) -> int:
    """Set the number of workers of one or more pools.

    Counts are absolute; 0 empties a pool. The command returns at once: workers start and end
    later, and busy workers finish their calls first.
    """
    from scalable.lifecycle.control import beyond_most, scale

    wanted = read_counts(counts)
    beyond = beyond_most(name, wanted)
    if beyond is not None:
        total, most = beyond
        confirm(f"A total of {total} workers exceeds max_workers {most}. Start them?", yes=yes)
    before, after = scale(name, wanted)
    lines = [f"{tag}: {before.get(tag, 0)} -> {count}" for tag, count in after.items()]
    output.show(
        Result("\n".join(lines) + "\n", {"version": VERSION, "before": before, "after": after})
    )
    return 0
