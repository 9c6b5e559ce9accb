"""``scalable gc``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from scalable.cli.options import manifest_argument, output_options, target_option
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.ending import gc
from scalable.errors import ProviderError
from scalable.providers.registry import provider_traits
from scalable.records.directory import remember
from scalable.session.request import Request


@click.command()
@manifest_argument
@target_option("Also search where this target of the manifest runs, such as in its region.")
@click.option("--yes", is_flag=True, help="Remove them; by default they are only listed.")
@output_options
def command(manifest: Path | None, target: str | None, *, yes: bool, output: Output) -> int:
    """Remove the remains of clusters that no longer exist.
    In a cloud it examines the region set in the shell, and the regions used from this machine in
    the last 30 days.

    The exit code is 4 if some remains could not be removed. The others are still removed.
    """
    if target is not None:
        _note_place(manifest, target)
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


def _note_place(manifest: Path | None, target: str) -> None:
    """Record a target's location so that it is examined too."""
    request = Request.read(manifest, target)
    if provider_traits(request.spec.provider_name).remote:
        remember(request.spec.provider_name, request.provider.place_of(request.spec))
