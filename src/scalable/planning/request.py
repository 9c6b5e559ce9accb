"""Objective, policy, deadline and budget that a user requests for a plan. Does no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalable.errors import PlanError
from scalable.units import parse_duration

OBJECTIVES = ("minimize cost", "minimize time", "balance")
POLICIES = ("safe", "aggressive", "manual")


@dataclass(frozen=True)
class PlanRequest:
    """Objective, policy and limits of a plan."""

    #: One of :data:`OBJECTIVES`. None to use the worker counts of the manifest.
    objective: str | None = None
    policy: str = "manual"
    #: Deadline in seconds. None for the target's walltime.
    deadline_s: float | None = None
    #: Maximum cost, in the currency of the prices.
    budget: float | None = None
    #: True if no objective was given, so that it follows from the limits.
    implied: bool = False

    @property
    def least_cost(self) -> bool:
        """True to minimize cost within a deadline, rather than the number of workers."""
        return self.implied and self.objective == "minimize cost"

    @classmethod
    def parse(
        cls,
        objective: str | None = None,
        policy: str | None = None,
        deadline: str | float | None = None,
        budget: float | None = None,
    ) -> PlanRequest:
        """Check the user's options, and return the request.
        Without an objective, a deadline requests the cheapest plan within it, and a budget alone
        the fastest. With policy ``manual``, both are only compared with the prediction. Raises
        NotImplementedError for an unknown objective, and PlanError for other invalid options.
        """
        if objective is not None:
            objective = " ".join(str(objective).lower().split())
            if objective not in OBJECTIVES:
                raise NotImplementedError(
                    f"objective {objective!r} is not available; "
                    f"available objectives: {', '.join(map(repr, OBJECTIVES))}"
                )
        if policy is not None and str(policy).lower() not in POLICIES:
            raise PlanError(
                f"unknown policy {policy!r}", hint=f"available policies: {', '.join(POLICIES)}"
            )
        within = _parse_deadline(deadline), _parse_budget(budget)
        implied = objective is None and within != (None, None) and str(policy).lower() != "manual"
        if implied:
            objective = "minimize cost" if deadline is not None else "minimize time"
        chosen = str(policy).lower() if policy is not None else "safe" if objective else "manual"
        if objective is None and chosen != "manual":
            raise PlanError(
                f"policy {policy!r} needs an objective, a deadline or a budget",
                hint=f"available objectives: {', '.join(map(repr, OBJECTIVES))}",
            )
        return cls(objective, chosen, *within, implied)


def _parse_deadline(deadline: str | float | None) -> float | None:
    if deadline is None:
        return None
    try:
        seconds = parse_duration(deadline)
    except ValueError as error:
        raise PlanError(f"deadline: {error}") from error
    if not 0 < seconds < math.inf:
        raise PlanError(
            f"deadline {deadline!r} is not a positive duration", hint="write, for example, 2h"
        )
    return seconds


def _parse_budget(budget: float | None) -> float | None:
    if budget is None:
        return None
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if not number or not 0 < budget < math.inf:
        raise PlanError(
            f"budget {budget!r} is not a positive amount of money", hint="write, for example, 12.50"
        )
    return float(budget)
