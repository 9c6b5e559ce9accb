"""Options and questions of commands that plan or start a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.cli.clusters import no_prices
from scalable.cli.options import combined
from scalable.cli.output import Output
from scalable.planning.request import OBJECTIVES, POLICIES
from scalable.providers.registry import get_provider, provider_class, provider_traits
from scalable.units import format_amount, format_duration

if TYPE_CHECKING:
    from scalable.model import DeploymentSpec, Plan
    from scalable.session.request import Request


class Objective(click.Choice[str]):
    """Click type of an objective, by one word or as in a plan, such as ``minimize cost``."""

    def __init__(self) -> None:
        words = [objective.split()[-1] for objective in OBJECTIVES]
        super().__init__(words, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = " ".join(value.split()).lower().removeprefix("minimize ")
        return OBJECTIVES[self.choices.index(super().convert(word, param, ctx))]


@dataclass(frozen=True)
class AskedPlan:
    """Options for choosing a plan. Contradictory ones raise click.UsageError."""

    objective: str | None = None
    policy: str | None = None
    deadline: str | None = None
    budget: float | None = None
    #: File of an existing plan. None to make one.
    plan_file: Path | None = None

    def __post_init__(self) -> None:
        if self.plan_file is not None and self.options:
            raise click.UsageError(
                f"--plan already sets the numbers of workers: leave out {', '.join(self.options)}, "
                "or make another plan with them"
            )

    @property
    def options(self) -> list[str]:
        """The given options for choosing a plan, as the user writes them."""
        names = ("objective", "policy", "deadline", "budget")
        return [f"--{name}" for name in names if getattr(self, name) is not None]

    @property
    def chosen(self) -> bool:
        return self.plan_file is not None or bool(self.options)

    def read(self, manifest: Path | None, target: str | None) -> tuple[Request, Plan | None]:
        """Return the request and the plan in the file, if any. The target defaults to the plan's.
        A plan that is unreadable or for another manifest raises PlanError.
        """
        from scalable.session.plan_files import checked_plan, read_plan
        from scalable.session.request import Request

        if self.plan_file is None:
            return Request.read(manifest, target), None
        plan = read_plan(self.plan_file)
        if target is not None and target != plan.target_name:
            raise click.UsageError(
                f"{self.plan_file} is a plan for target {plan.target_name!r}, not for {target!r}"
            )
        request = Request.read(manifest, plan.target_name)
        return request, checked_plan(request, plan, str(self.plan_file))

    def make(self, request: Request, output: Output, *, detached: bool = False) -> Plan:
        """Return the requested plan. A budget limits the plan where prices are known."""
        from scalable.forecasting import quoted_prices

        budget = self.budget
        if budget is not None:
            prices = quoted_prices(request.provider, request.spec, detached=detached)
            if prices is None and not detached:  # `up` reports it for the cluster
                output.note(no_prices(budget))
            budget = None if prices is None else budget
        deadline = self.deadline
        return request.plan(
            self.objective, self.policy, deadline=deadline, budget=budget, detached=detached
        )

    def spending_limit(self, plan: Plan | None) -> float | None:
        """Return the budget of the cluster: that of the file's plan, if it has prices."""
        if self.plan_file is None or plan is None:
            return self.budget
        return None if plan.cost_estimate is None else plan.budget


def plan_options(*options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Add ``--objective``, ``--policy``, ``--deadline`` and ``options``, as ``asked``."""
    return combined(
        "asked",
        AskedPlan,
        click.option("--objective", type=Objective(), help="What to optimize."),
        click.option(
            "--policy",
            type=click.Choice(POLICIES, case_sensitive=False),
            help="Headroom that the plan keeps. With manual, use the manifest's counts.",
        ),
        click.option(
            "--deadline",
            metavar="DURATION",
            help="Maximum duration of the run, such as 2h; by default the target's walltime. "
            "Without --objective, the cheapest plan within it is chosen.",
        ),
        *options,
    )


#: Decorator that also adds ``--budget`` and ``--plan``, for commands that start a plan.
started_plan_options = plan_options(
    click.option(
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        metavar="AMOUNT",
        help="Maximum cost of the run or cluster, if there are prices. The plan stays within it, "
        "and pools stop growing when 80 % of it is spent. Overrides the target's budget. Without "
        "--objective and --deadline, the quickest plan within it is chosen.",
    ),
    click.option(
        "--plan",
        "plan_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Start the workers of this plan, written by `scalable plan --output FILE`. If the "
        "manifest has changed since, the command fails.",
    ),
)


# Spending -----------------------------------------------------------------------------------------


def costs_money(spec: DeploymentSpec, plan: Plan | None = None) -> bool:
    """Return whether a run on a target is billed.
    This holds for providers that estimate costs, and for other remote ones if the plan has a price.
    """
    provider, priced = spec.provider_name, plan is not None and plan.cost_estimate is not None
    estimates = hasattr(provider_class(provider), "estimate_cost")
    return estimates or (priced and provider_traits(provider).remote)


def said_cost(plan: Plan, *, idle_s: float | None = None) -> str:
    """Return sentences about the costs per hour, for the planned work and for idle time."""
    cost, predicted = plan.cost_estimate, plan.predicted_cost
    if cost is None:
        return "Its cost is not known: no price is given."
    unit = cost.currency
    texts = [f"It costs {format_amount(cost.hourly, unit)} {unit} an hour"]
    if cost.total is not None:
        between = ""
        if predicted is not None:
            low, high = (format_amount(end, unit) for end in predicted.billed_interval)
            between = f" ({low} to {high})"
        texts.append(f"{format_amount(cost.total, unit)} {unit}{between} for the planned work")
    if idle_s is not None:
        tail = format_amount(cost.hourly * idle_s / 3600, unit)
        texts.append(f"up to {tail} {unit} while it waits {format_duration(idle_s)} for more")
    return ", ".join(texts) + "."


def said_of_managers(specs: Iterable[DeploymentSpec]) -> list[str]:
    """Return sentences about worker prices of managers on other targets."""
    from scalable.forecasting import quoted_prices

    texts = []
    for spec in specs:
        prices = quoted_prices(get_provider(spec.provider_name), spec)
        if prices is not None and prices.hourly_by_tag:
            hourly, unit = prices.hourly_by_tag.values(), prices.currency
            ends = sorted({min(hourly), max(hourly)})
            amount = " to ".join(format_amount(end, unit) for end in ends)
            texts.append(f"A worker on {spec.target_name!r} costs {amount} {unit} an hour.")
    return texts
