"""``scalable prune``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from scalable.cli.options import Command, Removal, manifest_argument, removal_options, target_option
from scalable.cli.output import Output, Result
from scalable.clusters.ending import Remains, prune
from scalable.errors import ProviderError
from scalable.providers.registry import provider_traits
from scalable.records.directory import remember
from scalable.session.request import Request
from scalable.units import counted


@click.command(cls=Command)
@manifest_argument
@target_option("Also search the site of this target, such as its region.")
@removal_options
def command(
    manifest: Path | None, target: str | None, *, removal: Removal, output: Output
) -> Result:
    """Remove the remains of clusters that no longer exist.
    The command lists them, and removes them after a confirmation. In a cloud, it searches the
    region set in the shell, and regions used from this machine in the last 30 days.

    The exit code is 4 if some remains could not be removed. The others are still removed.
    """

    def approve(found: Sequence[Remains]) -> None:
        if found:
            question = f"Remove the remains of {counted(len(found), 'cluster')}?"
            removal.approved(_render(found, done=False), question, output)

    if target is not None:  # its location is examined too
        spec = (request := Request.read(manifest, target)).spec
        if provider_traits(spec.provider_name).remote:
            remember(spec.provider_name, request.provider.place_of(spec))
    found = prune(dry_run=removal.dry_run, warn=output.warn, approve=approve)
    for one in found:
        if one.error is not None:
            output.warn(f"{one.name or one.id} could not be removed: {one.error}")
    data = {"done": not removal.dry_run, "found": [asdict(one) for one in found]}
    code = ProviderError.exit_code if any(one.error for one in found) else 0
    return Result(_render(found, done=not removal.dry_run), data, exit_code=code)


def _render(found: Sequence[Remains], *, done: bool) -> str:
    lines = [
        f"  {one.kind:8} {one.name or '-'} ({one.id[:8]}): {one.action}\n"
        for one in found
        if one.error is None
    ]
    if not found:
        return "nothing to remove\n"
    return "".join(["removed:\n" if done else "would be removed:\n", *lines]) if lines else "\n"
