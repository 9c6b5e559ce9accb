"""Options of commands that plan or start a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.cli.costs import no_prices
from scalable.cli.output import Output

if TYPE_CHECKING:
    from scalable.model import Plan
    from scalable.session.request import Request

Command = Callable[..., Any]


def objective_options(command: Command) -> Command:
    """Add ``--objective``, ``--policy`` and ``--deadline``."""
    options: Sequence[Callable[[Command], Command]] = (
        click.option(
            "--objective", metavar="TEXT", help="'minimize cost', 'minimize time' or 'balance'."
        ),
        click.option(
            "--policy", metavar="NAME", help="Margin for the objective: safe, aggressive or manual."
        ),
        click.option(
            "--deadline",
            metavar="TIME",
            help="Maximum duration of the run, such as 2h; by default the target's walltime. "
            "Without --objective, the cheapest plan within it is chosen.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def plan_option(command: Command) -> Command:
    """Add ``--plan``."""
    return click.option(
        "--plan",
        "plan_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Start the workers of this plan, which `scalable plan --output FILE` wrote; refused "
        "if the manifest has changed since.",
    )(command)


@dataclass(frozen=True)
class AskedPlan:
    """Options for choosing a plan. Contradictory ones raise click.UsageError."""

    objective: str | None = None
    policy: str | None = None
    deadline: str | None = None
    budget: float | None = None
    #: File of an existing plan. None to make one.
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.file is not None and self.options:
            raise click.UsageError(
                f"--plan gives the numbers of workers: leave out {', '.join(self.options)}, or "
                "plan again with them"
            )

    @property
    def options(self) -> list[str]:
        """The given options for choosing a plan, as the user writes them."""
        given = {
            "--objective": self.objective,
            "--policy": self.policy,
            "--deadline": self.deadline,
            "--budget": self.budget,
        }
        return [name for name, value in given.items() if value is not None]

    @property
    def chosen(self) -> bool:
        return self.file is not None or bool(self.options)

    def read(self, manifest: Path | None, target: str | None) -> tuple[Request, Plan | None]:
        """Return the request and the plan in the file, if any. The target defaults to the plan's.
        A plan that is unreadable or for another manifest raises PlanError.
        """
        from scalable.session.plan_files import checked_plan, read_plan
        from scalable.session.request import Request

        if self.file is None:
            return Request.read(manifest, target), None
        plan = read_plan(self.file)
        if target is not None and target != plan.target_name:
            raise click.UsageError(
                f"{self.file} is a plan for target {plan.target_name!r}, not for {target!r}"
            )
        request = Request.read(manifest, plan.target_name)
        return request, checked_plan(request, plan, str(self.file))

    def make(self, request: Request, output: Output, *, detached: bool = False) -> Plan:
        """Return the requested plan. A budget limits the plan where prices are known."""
        budget = self.budget
        if budget is not None and not _has_prices(request, detached=detached):
            if not detached:  # `up` reports it for the cluster
                output.note(no_prices(budget))
            budget = None
        return request.plan(
            self.objective,
            self.policy,
            deadline=self.deadline,
            budget=budget,
            detached=detached,
        )


def _has_prices(request: Request, *, detached: bool) -> bool:
    from scalable.forecasting import quoted_prices

    return quoted_prices(request.provider, request.spec, detached=detached) is not None


def budget_of(plan: Plan | None) -> float | None:
    """Return the budget of a plan's cluster, or None without one."""
    return None if plan is None or plan.cost_estimate is None else plan.budget
