"""``scalable dashboard``."""

from __future__ import annotations

import os
import socket
import webbrowser

import click

from scalable.cli.options import Command, optional_name_argument
from scalable.cli.output import Output, Result
from scalable.clusters.control import ask, reached, refuse_gone
from scalable.clusters.discovery import only_cluster
from scalable.errors import ClusterError
from scalable.protocol.handlers import Handler
from scalable.records import ClusterDirectory, find


@click.command(cls=Command)
@optional_name_argument
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser too.")
def command(name: str | None, *, opens: bool, output: Output) -> None:
    """Show the address of a cluster's dashboard.
    NAME may be left out if there is only one cluster.

    The address contains a secret token: anyone with it can see the cluster. In an ssh session, or
    if the scheduler is on another machine, the output contains the command that forwards the port.

    If the scheduler has no dashboard, or runs in a remote backend, this command serves the page
    itself until it is interrupted (Ctrl-C).
    """
    from scalable.watch.pages import page_link, serve_page

    directory = find(name or only_cluster())
    refuse_gone(directory)
    known, here = directory.scheduler() or {}, socket.gethostname()
    if link := known.get("dashboard"):
        host = str(known.get("host") or here)
        _show(directory, page_link(link), host, output, opens=opens)
        return
    record = directory.record()
    if record.embedded:
        raise ClusterError(
            f"session {record.name!r} has no dashboard",
            hint="set dashboard_address of the target before the session starts, or run `scalable "
            f"top {record.name}`",
        )
    ask(directory, Handler.OVERVIEW)  # fails here if it does not respond
    service, pem = reached(directory)

    def shown(page: str) -> None:
        _show(directory, page, here, output, opens=opens)
        output.note("this command serves the page until you press Ctrl-C")

    serve_page(service["address"], pem, shown)


def _show(
    directory: ClusterDirectory, page: str, host: str, output: Output, *, opens: bool
) -> None:
    from scalable.watch.pages import ssh_command

    record, forward, lines = directory.record(), None, [page]
    if host != socket.gethostname() or "SSH_CONNECTION" in os.environ:
        forward = ssh_command(page, host, record.owner)
        lines.append(f"on the machine with your browser, first run: {forward}")
    data = {"name": record.name, "page": page, "ssh": forward}
    output.show(Result("\n".join(lines) + "\n", data))
    if opens and not webbrowser.open(page):
        output.warn("could not open a browser")
