"""``scalable dashboard``."""

from __future__ import annotations

import os
import socket
import webbrowser

import click

from scalable.cli.clusters import name_argument
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result


@click.command()
@name_argument
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser too.")
@output_options
def command(name: str, *, opens: bool, output: Output) -> int:
    """Show the address of a cluster's live page.

    The address contains a secret token: who has it can see the cluster. If this shell came by ssh,
    or the scheduler is on another machine, the command that forwards the page's port is shown too.
    """
    from scalable.dashboard.links import page_link, ssh_command
    from scalable.errors import ClusterError
    from scalable.lifecycle.control import refuse_gone
    from scalable.records import find

    directory = find(name)
    refuse_gone(directory)
    record, scheduler = directory.record(), directory.scheduler() or {}
    link = scheduler.get("dashboard")
    if not link:
        hint = "start it with `scalable up --dashboard :0`, or set dashboard_address of its target"
        if record.remote:
            hint = "the page of a scheduler in a remote place cannot be opened from here yet"
        raise ClusterError(f"cluster {record.name!r} has no live page", hint=hint)
    page = page_link(link)
    host = str(scheduler.get("host") or socket.gethostname())
    forward = None
    if host != socket.gethostname() or "SSH_CONNECTION" in os.environ:
        forward = ssh_command(page, host, record.owner)
    lines = [page]
    if forward is not None:
        lines.append(f"from the machine in front of you, first: {forward}")
    data = {"version": VERSION, "name": record.name, "page": page, "ssh": forward}
    output.show(Result("\n".join(lines) + "\n", data))
    if opens and not webbrowser.open(page):
        output.warn("no browser could be opened")
    return 0
