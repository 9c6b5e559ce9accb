"""Formatting of the costs and budgets of clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from scalable.model.costs import CURRENCY
from scalable.units import format_amount, format_duration

if TYPE_CHECKING:
    from scalable.model import DeploymentSpec, Plan

#: Titles of the extra columns if anything has a price.
HEADER = ("cost", "per hour")


def budget_option(command: Any) -> Any:
    """Add ``--budget``."""
    return click.option(
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        metavar="AMOUNT",
        help="Maximum cost of the run, if there are prices. The plan keeps to it, and pools stop "
        "growing when 80 % of it is spent. Overrides the target's budget. Without "
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
        f"Cost:      {so_far} {CURRENCY} so far, {rate} an hour now; {idle} for time without tasks"
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
    """Return a remark about a budget for a cluster without prices."""
    return f"the budget of {_amount(budget)} {CURRENCY} has no effect: no worker has a price"


def _amount(amount: float) -> str:
    return format_amount(amount, CURRENCY)


# Spending -----------------------------------------------------------------------------------------


def costs_money(spec: DeploymentSpec, plan: Plan | None = None) -> bool:
    """Return whether a run on a target is billed.
    This holds for providers that estimate costs, and for other remote ones if the plan has a price.
    """
    from scalable.providers.registry import provider_class, provider_traits

    if hasattr(provider_class(spec.provider_name), "estimate_cost"):
        return True
    priced = plan is not None and plan.cost_estimate is not None
    return priced and provider_traits(spec.provider_name).remote


def said_cost(plan: Plan, *, idle_s: float | None = None) -> str:
    """Return sentences about the costs per hour, for the planned work and for idle time."""
    cost, predicted = plan.cost_estimate, plan.predicted_cost
    if cost is None:
        return "Its cost is not known: no price is given."
    unit = cost.currency
    texts = [f"It costs {format_amount(cost.hourly, unit)} {unit} an hour"]
    if cost.total is not None:
        between = ""
        if predicted is not None and predicted.billed_interval is not None:
            low, high = (format_amount(end, unit) for end in predicted.billed_interval)
            between = f" ({low} to {high})"
        texts.append(f"{format_amount(cost.total, unit)} {unit}{between} for the planned work")
    if idle_s is not None:
        tail = format_amount(cost.hourly * idle_s / 3600, unit)
        texts.append(f"up to {tail} {unit} while it waits {format_duration(idle_s)} for more")
    return ", ".join(texts) + "."


def said_of_managers(specs: Iterable[DeploymentSpec]) -> str:
    """Return a sentence about worker prices of managers on other targets."""
    from scalable.forecasting import quoted_prices
    from scalable.providers.registry import get_provider

    texts = []
    for spec in specs:
        prices = quoted_prices(get_provider(spec.provider_name), spec)
        if prices is None or not prices.hourly_by_tag:
            continue
        unit = prices.currency
        ends = sorted({min(prices.hourly_by_tag.values()), max(prices.hourly_by_tag.values())})
        amount = " to ".join(format_amount(end, unit) for end in ends)
        texts.append(f"A worker on {spec.target_name!r} costs {amount} {unit} an hour.")
    return " ".join(texts)
