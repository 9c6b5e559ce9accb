"""`PlanRequest`: what a user asks of a plan (objective, policy, deadline, budget). No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalable.errors import PlanError
from scalable.units import parse_duration

OBJECTIVES = ("minimize cost", "minimize time", "balance")
POLICIES = ("safe", "aggressive", "manual")


@dataclass(frozen=True)
class PlanRequest:
    """Objective, policy and limits of a plan.

    Attributes
    ----------
    objective
        One of :data:`OBJECTIVES`; None to use the worker counts of the manifest.
    policy
        One of :data:`POLICIES`.
    deadline_s
        Seconds that the run may take; None for the target's walltime.
    budget
        Amount that may be spent, in the currency of the prices; None for no limit.
    """

    objective: str | None = None
    policy: str = "manual"
    deadline_s: float | None = None
    budget: float | None = None

    @classmethod
    def parse(
        cls,
        objective: str | None = None,
        policy: str | None = None,
        deadline: str | float | None = None,
        budget: float | None = None,
    ) -> PlanRequest:
        """Return the request for the options that a user gave, after checking them.

        Raises
        ------
        NotImplementedError
            If the objective is unknown.
        PlanError
            If the policy, the deadline or the budget is invalid, or given without an objective.
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
        chosen = str(policy).lower() if policy is not None else "safe" if objective else "manual"
        for name, value in (("policy", policy if chosen != "manual" else None),
                            ("deadline", deadline), ("budget", budget)):  # fmt: skip
            if objective is None and value is not None:
                raise PlanError(
                    f"{name} {value!r} needs an objective",
                    hint=f"available objectives: {', '.join(map(repr, OBJECTIVES))}",
                )
        return cls(objective, chosen, _parse_deadline(deadline), _parse_budget(budget))


def _parse_deadline(deadline: str | float | None) -> float | None:
    if deadline is None:
        return None
    try:
        seconds = parse_duration(deadline)
    except ValueError as error:
        raise PlanError(f"deadline: {error}") from error
    if not 0 < seconds < math.inf:
        raise PlanError(
            f"deadline {deadline!r} is not a positive length of time", hint="write for example 2h"
        )
    return seconds


def _parse_budget(budget: float | None) -> float | None:
    if budget is None:
        return None
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if not number or not 0 < budget < math.inf:
        raise PlanError(
            f"budget {budget!r} is not a positive amount of money", hint="write for example 12.50"
        )
    return float(budget)
