"""``scalable connect``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable.cli.options import Command, name_argument
from scalable.cli.output import Output, Result, naming
from scalable.clusters.connecting import snippet
from scalable.clusters.control import refuse_gone
from scalable.protocol.addresses import LOOPBACK
from scalable.records import AccessFile, find, write_access_file


@click.command(cls=Command)
@name_argument
@click.option(
    "--export",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a file with the address and the credentials, for clients and managers elsewhere. "
    "Anyone with this file can use the cluster.",
)
def command(name: str, *, file: Path | None, output: Output) -> Result:
    """Show how to connect to a cluster from Python."""
    directory = find(name)
    refuse_gone(directory)
    # An unreachable cluster or unusable credentials fail here, not after the paste.
    address = AccessFile.of(directory).address
    if file is None:
        text = snippet(directory)
        page = (directory.scheduler() or {}).get("dashboard")
        data = {"address": address, "dashboard": page, "snippet": text}
        return Result(text, data)
    with naming(file):
        write_access_file(file, directory)
    if f"//{LOOPBACK}:" in address:
        output.warn(
            f"only this machine can reach {address}: set interface in the target to change this"
        )
    # `bundle` is the former key, for programs that read it.
    data = {"address": address, "access_file": str(file), "bundle": str(file)}
    return Result(f"wrote {file}: keep it secret\n", data)
