"""``scalable connect``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable.cli.clusters import name_argument
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@name_argument
@click.option(
    "--export",
    "bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a file with address and credentials, for clients and managers on other machines. "
    "Who has it can use the cluster.",
)
@output_options
def command(name: str, *, bundle: Path | None, output: Output) -> int:
    """Show how to connect to a cluster from Python."""
    from scalable.lifecycle.connecting import snippet
    from scalable.records import find, write_bundle

    directory = find(name)
    if bundle is not None:
        write_bundle(bundle, directory)
        data = {"version": VERSION, "bundle": str(bundle)}
        output.show(Result(f"wrote {bundle}: keep it secret\n", data))
        return 0
    text = snippet(directory)
    scheduler = directory.scheduler() or {}
    data = {"version": VERSION, "address": scheduler.get("address"), "snippet": text}
    output.show(Result(text, data))
    return 0
