"""``scalable gc``."""

from __future__ import annotations

from dataclasses import asdict

import click

from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@click.option("--yes", is_flag=True, help="Remove them; by default they are only listed.")
@output_options
def command(*, yes: bool, output: Output) -> int:
    """Remove the remains of clusters that no longer exist."""
    from scalable.lifecycle.garbage import gc

    found = gc(dry_run=not yes, warn=output.warn)
    lines = [f"  {g.kind:8} {g.name or '-'} ({g.id[:8]}): {g.action}" for g in found]
    head = "removed:" if yes else "would be removed with --yes:"
    text = "\n".join([head, *lines]) if found else "nothing to remove"
    data = {"version": VERSION, "done": yes, "found": [asdict(g) for g in found]}
    output.show(Result(text + "\n", data))
    return 0
