"""``scalable scale``."""

from __future__ import annotations

import time
from typing import Any

import click

from scalable.cli.clusters import render_budget
from scalable.cli.options import Command, confirm, optional_name_argument, read_counts
from scalable.cli.output import Result
from scalable.clusters.control import beyond_most, scale, set_budget
from scalable.clusters.discovery import only_cluster
from scalable.records import find, status_of


@click.command(cls=Command)
@optional_name_argument
@click.argument("counts", nargs=-1, metavar="[TAG=N]...")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation, even above the target's limit."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="AMOUNT",
    help="Set the total amount that the cluster may spend.",
)
def command(
    name: str | None, counts: tuple[str, ...], *, yes: bool, budget: float | None
) -> Result:
    """Set the numbers of workers, or the cluster's budget.
    NAME may be left out if there is only one cluster. Counts are absolute; 0 stops all
    workers of a pool. The command returns at once. Workers start and stop in the background, and
    busy workers finish their tasks first.
    """
    if name is not None and "=" in name:  # no cluster has such a name
        counts, name = (name, *counts), None
    wanted = read_counts(counts)
    if not wanted and budget is None:
        raise click.UsageError("give TAG=N, --budget, or both")
    name = name or only_cluster()
    if beyond := beyond_most(name, wanted):
        confirm("A total of {} workers exceeds {}. Start them?".format(*beyond), yes=yes)
    lines: list[str] = []
    data: dict[str, Any] = {}
    if budget is not None:
        data["cost"] = set_budget(name, budget)
        lines += render_budget(data["cost"], budget)
    adaptive = status_of(find(name), time.time()).adaptive if wanted else {}
    before, after = scale(name, wanted) if wanted else ({}, {})
    for tag, count in after.items():
        fixed = "; it no longer follows its load" if tag in adaptive else ""
        lines.append(f"{tag}: {before.get(tag, 0)} -> {count}{fixed}")
    data |= {"before": before, "after": after}
    return Result("\n".join(lines) + "\n", data)
