"""``scalable explain``."""

from __future__ import annotations

import click

from scalable.cli.options import Command, optional_name_argument
from scalable.cli.output import Result
from scalable.clusters.control import explain
from scalable.clusters.discovery import only_cluster
from scalable.errors import ClusterError
from scalable.views.explanation import State


@click.command(cls=Command)
@optional_name_argument
@click.argument("about", required=False, metavar="[TAG|TASK]")
def command(name: str | None, about: str | None) -> Result:
    """Explain why tasks and pools wait, or why a task failed.
    NAME is the name of a running cluster, or of a session in another of your processes, or of the
    session's run. It may be left out if there is only one. With TAG, explain this pool and tasks
    waiting for it. TASK is a task's key, a prefix of the key, or a task name. Without TAG and TASK,
    explain all pools and all waiting tasks.
    """
    cluster = name or only_cluster()
    found = explain(cluster, about)
    for call in found.calls:
        if call.state is State.UNKNOWN:
            raise ClusterError(call.sentence, hint=call.advice)
    lines: list[str] = []
    for each in (*found.pools, *found.calls):
        lines.append(f"{each.sentence[:1].upper()}{each.sentence[1:]}.")
        lines += [f"  -> {each.advice}"] if each.advice else []
    if not found.calls:
        lines.append("No task is waiting.")
    text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
    return Result(text, {"cluster": cluster, **found.to_dict()})
