"""``scalable prune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from scalable.cli.options import (
    Command,
    confirm_removal,
    manifest_argument,
    output_options,
    removal_options,
    target_option,
)
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.ending import Remains, prune
from scalable.errors import ProviderError
from scalable.providers.registry import provider_traits
from scalable.records.directory import remember
from scalable.session.request import Request
from scalable.units import counted


@click.command(cls=Command)
@manifest_argument
@target_option("Also search where this target of the manifest runs, such as in its region.")
@removal_options
@output_options
def command(
    manifest: Path | None, target: str | None, *, yes: bool, dry_run: bool, output: Output
) -> Result:
    """Remove the remains of clusters that no longer exist.
    They are listed, and removed after a confirmation. In a cloud, the region set in the shell is
    examined, and the regions used from this machine in the last 30 days.

    The exit code is 4 if some remains could not be removed. The others are still removed.
    """

    def approve(found: Sequence[Remains]) -> None:
        if found:
            question = f"Remove the remains of {counted(len(found), 'cluster')}?"
            confirm_removal(_render(found, done=False), question, output, yes=yes)

    if target is not None:
        _note_place(manifest, target)
    found = prune(dry_run=dry_run, warn=output.warn, approve=approve)
    for one in found:
        if one.error is not None:
            output.warn(f"{one.name or one.id} could not be removed: {one.error}")
    data = {"version": VERSION, "done": not dry_run, "found": [asdict(one) for one in found]}
    code = ProviderError.exit_code if any(one.error for one in found) else 0
    return Result(_render(found, done=not dry_run), data, exit_code=code)


def _render(found: Sequence[Remains], *, done: bool) -> str:
    lines = [
        f"  {one.kind:8} {one.name or '-'} ({one.id[:8]}): {one.action}\n"
        for one in found
        if one.error is None
    ]
    if not found:
        return "nothing to remove\n"
    return "".join(["removed:\n" if done else "would be removed:\n", *lines]) if lines else "\n"


def _note_place(manifest: Path | None, target: str) -> None:
    """Record a target's location so that it is examined too."""
    request = Request.read(manifest, target)
    if provider_traits(request.spec.provider_name).remote:
        remember(request.spec.provider_name, request.provider.place_of(request.spec))
