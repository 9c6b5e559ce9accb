"""``scalable gc``."""

from __future__ import annotations

from dataclasses import asdict

import click

from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@click.option("--yes", is_flag=True, help="Do it; otherwise it is only shown.")
@output_options
def command(*, yes: bool, output: Output) -> int:
    """Clear away what is left of clusters that are no more."""
    from scalable.lifecycle.garbage import gc

    found = gc(dry_run=not yes, warn=output.warn)
    lines = [f"  {g.kind:8} {g.name or '-'} ({g.id[:8]}): {g.action}" for g in found]
    head = "cleared away:" if yes else "would be cleared away, with --yes:"
    text = "\n".join([head, *lines]) if found else "nothing is left over"
    data = {"version": VERSION, "done": yes, "found": [asdict(g) for g in found]}
    output.show(Result(text + "\n", data))
    return 0
