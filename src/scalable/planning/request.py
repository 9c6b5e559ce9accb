"""What a plan is to aim for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalable.errors import PlanError
from scalable.units import parse_duration

OBJECTIVES = ("minimize cost", "minimize time", "balance")
POLICIES = ("safe", "aggressive", "manual")


@dataclass(frozen=True)
class PlanRequest:
    """What is asked of a plan.

    Attributes
    ----------
    objective
        One of :data:`OBJECTIVES`, or None for the counts that the manifest gives.
    policy
        One of :data:`POLICIES`.
    deadline_s
        Seconds, or None for the target's walltime.
    budget
        What may be spent, in the currency of the prices, or None.
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
        """Read what was asked for.

        Raises
        ------
        NotImplementedError
            For any other objective.
        PlanError
            For what is no policy, no length of time or no sum, or has no objective to serve.
        """
        if objective is not None:
            objective = " ".join(str(objective).lower().split())
            if objective not in OBJECTIVES:
                raise NotImplementedError(
                    f"objective {objective!r} is not available; "
                    f"there are: {', '.join(map(repr, OBJECTIVES))}"
                )
        if policy is not None and str(policy).lower() not in POLICIES:
            raise PlanError(f"unknown policy {policy!r}", hint=f"there are: {', '.join(POLICIES)}")
        chosen = str(policy).lower() if policy is not None else "safe" if objective else "manual"
        for name, value in (("policy", policy if chosen != "manual" else None),
                            ("deadline", deadline), ("budget", budget)):  # fmt: skip
            if objective is None and value is not None:
                raise PlanError(
                    f"{name} {value!r} has no objective to serve",
                    hint=f"there are: {', '.join(map(repr, OBJECTIVES))}",
                )
        return cls(objective, chosen, _seconds(deadline), _sum(budget))


def _seconds(deadline: str | float | None) -> float | None:
    if deadline is None:
        return None
    try:
        seconds = parse_duration(deadline)
    except ValueError as error:
        raise PlanError(f"deadline: {error}") from error
    if not 0 < seconds < math.inf:
        raise PlanError(f"deadline {deadline!r} leaves no time", hint="write for example 2h")
    return seconds


def _sum(budget: float | None) -> float | None:
    if budget is None:
        return None
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if not number or not 0 < budget < math.inf:
        raise PlanError(f"budget {budget!r} is no sum of money", hint="write for example 12.50")
    return float(budget)
