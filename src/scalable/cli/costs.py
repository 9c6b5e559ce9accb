"""Formatting of the costs and budgets of clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from scalable.spec.costs import CURRENCY
from scalable.units import format_amount

#: Titles of the extra columns if anything has a price.
HEADER = ("cost", "per hour")


def budget_option(command: Any) -> Any:
    """Add ``--budget``."""
    return click.option(
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        metavar="AMOUNT",
        help="Money that the run may cost, where anything has a price: the plan keeps to it, and "
        "no pool grows once 80 % of it are spent. Overrides the target's budget. Without "
        "--objective and --deadline, the quickest plan within it is chosen.",
    )(command)


def cells(cost: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return cost and rate of a pool or a manager, for the columns of :data:`HEADER`."""
    if cost is None:
        return "-", "-"
    return _amount(cost["cost"]), _amount(cost["per_hour"])


def render_cost(cost: Mapping[str, Any]) -> list[str]:
    """Format the costs and the budget of a cluster as lines."""
    so_far, idle, rate = (_amount(cost[key]) for key in ("cost", "idle", "per_hour"))
    lines = [
        f"Cost:      {so_far} {CURRENCY} so far, {rate} an hour now; {idle} for time without calls"
    ]
    lines += [
        f"           without workers of manager {manager}: their price is not known"
        for manager in cost.get("unpriced", ())
    ]
    budget = cost.get("budget")
    if budget is not None:
        share = int(100 * cost["cost"] / budget)
        lines.append(f"Budget:    {_amount(budget)} {CURRENCY}, {share} % spent")
        if cost.get("words"):
            lines.append(f"           {cost['words']}; {cost['way_out']}")
    return lines


def no_prices(budget: float) -> str:
    """Return a remark on a budget for a cluster in which nothing has a price."""
    return f"the budget of {_amount(budget)} {CURRENCY} has no effect: no worker has a price"


def _amount(amount: float) -> str:
    return format_amount(amount, CURRENCY)
