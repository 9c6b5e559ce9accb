"""``scalable scale``."""

from __future__ import annotations

from typing import Any

import click

from scalable.cli.clusters import confirm, name_argument, read_counts
from scalable.cli.costs import no_prices, render_cost
from scalable.cli.options import output_options
from scalable.cli.output import VERSION, Output, Result
from scalable.clusters.control import beyond_most, scale, set_budget


@click.command()
@name_argument
@click.argument("counts", nargs=-1, metavar="[TAG=N...]")
@click.option(
    "--yes", is_flag=True, help="Do not ask, not even when the target's limit is exceeded."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="AMOUNT",
    help="Set the money that the cluster may spend in all.",
)
@output_options
def command(
    name: str, counts: tuple[str, ...], *, yes: bool, budget: float | None, output: Output
) -> int:
    """Set numbers of workers of pools, or the cluster's budget.
    Counts are absolute. 0 empties a pool. The command returns at once. Workers start and stop
    later, and busy workers finish their tasks first.
    """
    wanted = read_counts(counts)
    if not wanted and budget is None:
        raise click.UsageError("give TAG=N, --budget, or both")
    beyond = beyond_most(name, wanted)
    if beyond is not None:
        total, most = beyond
        confirm(f"A total of {total} workers exceeds {most}. Start them?", yes=yes)
    lines: list[str] = []
    data: dict[str, Any] = {"version": VERSION}
    if budget is not None:
        data["cost"] = set_budget(name, budget)
        lines += render_cost(data["cost"]) if data["cost"] else [no_prices(budget)]
    before, after = scale(name, wanted) if wanted else ({}, {})
    lines += [f"{tag}: {before.get(tag, 0)} -> {count}" for tag, count in after.items()]
    data |= {"before": before, "after": after}
    output.show(Result("\n".join(lines) + "\n", data))
    return 0
