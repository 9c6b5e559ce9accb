"""``scalable explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scalable.cli.clusters import complete_cluster
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.control import explain
from scalable.clusters.discovery import only_cluster
from scalable.errors import ClusterError
from scalable.views.explanation import State

if TYPE_CHECKING:
    from scalable.views.explanation import Explanations


@click.command()
@click.argument("name", required=False, shell_complete=complete_cluster)
@click.argument("about", required=False, metavar="[TAG|TASK]")
@output_options
def command(name: str | None, about: str | None, *, output: Output) -> int:
    """Say why tasks and pools wait, or why a task failed.
    NAME is a running cluster, or a session in another process of yours, by its name or its run's
    name. It may be left out if there is only one. TAG explains one pool and the tasks waiting for
    it. TASK is the key of a task, a prefix of the key, or a task name. Without both, all pools and
    all waiting tasks are explained.
    """
    cluster = name or only_cluster()
    found = explain(cluster, about)
    for call in found.calls:
        if call.state is State.UNKNOWN:
            raise ClusterError(call.sentence, hint=call.advice)
    data = {"version": VERSION, "cluster": cluster, **found.to_dict()}
    output.show(Result(_render(found), data))
    return 0


def _render(found: Explanations) -> str:
    lines: list[str] = []
    for each in (*found.pools, *found.calls):
        sentence = each.sentence[:1].upper() + each.sentence[1:]
        lines.append(_on_one_line(f"{sentence}."))
        if each.advice:
            lines.append(_on_one_line(f"  -> {each.advice}"))
    if not found.calls:
        lines.append("No task waits.")
    return "\n".join(lines) + "\n"


def _on_one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
