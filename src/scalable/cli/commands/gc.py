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
    """Remove the remains of clusters that no longer exist.

    The exit code is 4 if remains could not be removed; the others are.
    """
    from scalable.errors import ProviderError
    from scalable.lifecycle.garbage import gc

    found = gc(dry_run=not yes, warn=output.warn)
    lines = [
        f"  {g.kind:8} {g.name or '-'} ({g.id[:8]}): {g.action}" for g in found if g.error is None
    ]
    head = "removed:" if yes else "would be removed with --yes:"
    text = "\n".join([head, *lines]) if lines else "nothing to remove" if not found else ""
    for garbage in found:
        if garbage.error is not None:
            output.warn(f"{garbage.name or garbage.id} could not be removed: {garbage.error}")
    data = {"version": VERSION, "done": yes, "found": [asdict(g) for g in found]}
    output.show(Result(text + "\n", data))
    return ProviderError.exit_code if any(g.error for g in found) else 0
