"""Budgets: the stages of spending, and the worker counts that each stage allows. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from scalable.errors import ClusterError
from scalable.spec.costs import CURRENCY
from scalable.units import format_amount

#: Part of a budget after which no pool grows.
HELD_AT = 0.8
#: Actions at the end of a budget. ``warn`` only warns; ``drain`` empties the pools, and calls wait;
#: ``down`` empties the pools, and ends the cluster.
ACTIONS = ("warn", "drain", "down")


class Stage(StrEnum):
    """The stage of the spending of a budget."""

    OPEN = "open"
    HELD = "held"
    SPENT = "spent"


@dataclass(frozen=True)
class Budget:
    """An amount of money that a cluster may spend.

    Attributes
    ----------
    amount
        The amount, more than 0.
    action
        One of :data:`ACTIONS`, for the time when the budget is spent.
    """

    amount: float
    action: str = "drain"

    def stage(self, spent: float) -> Stage:
        """Return the stage after this much was spent."""
        if spent >= self.amount:
            return Stage.SPENT
        return Stage.HELD if spent >= HELD_AT * self.amount else Stage.OPEN

    def describe(self, spent: float) -> str:
        """Return a clause about the part that is spent, for messages."""
        share = math.floor(100 * spent / self.amount)
        amount = f"{format_amount(self.amount, CURRENCY)} {CURRENCY}"
        return f"{format_amount(spent, CURRENCY)} of the budget of {amount} are spent ({share} %)"


@dataclass(frozen=True)
class Ceiling:
    """The largest worker counts that the spending of a budget allows.

    Attributes
    ----------
    stage
        Stage for which the counts hold.
    empties
        Whether all pools have to be empty.
    counts
        Tag -> largest count while no pool may grow. A tag that is missing may have no worker.
    """

    stage: Stage = Stage.OPEN
    empties: bool = False
    counts: Mapping[str, int] | None = None

    def allows(self, tag: str, count: int) -> int:
        """Return the count, lowered to what is allowed."""
        if self.empties:
            return 0
        return count if self.counts is None else min(count, self.counts.get(tag, 0))

    def limited(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return tag -> allowed count, from tag -> wanted count."""
        return {tag: self.allows(tag, count) for tag, count in wanted.items()}

    def shrunk(self, wanted: Mapping[str, int]) -> Self:
        """Return the ceiling after pools have become smaller: they do not grow again."""
        if self.counts is None or self.empties:
            return self
        return replace(self, counts={t: min(n, wanted.get(t, n)) for t, n in self.counts.items()})


def next_ceiling(
    before: Ceiling,
    budget: Budget | None,
    spent: float,
    *,
    wanted: Mapping[str, int],
    present: Mapping[str, int],
) -> Ceiling:
    """Return the ceiling for the present spending.

    Once 80 % are spent, a pool keeps at most the workers that it has at that moment; workers that
    are lost may be replaced. The counts are kept while the pools are emptied, so that a budget that
    is raised lets the cluster go on with them.

    Parameters
    ----------
    before
        Ceiling until now.
    budget
        The budget; None without one.
    spent
        Cost of the cluster so far.
    wanted, present
        Tag -> number of workers that is wanted, and that is charged for or connected.
    """
    stage = Stage.OPEN if budget is None else budget.stage(spent)
    if budget is None or stage is Stage.OPEN:
        return Ceiling()
    counts = before.counts
    if counts is None:
        counts = {tag: min(count, present.get(tag, 0)) for tag, count in wanted.items()}
    empties = stage is Stage.SPENT and budget.action != "warn"
    return Ceiling(stage, empties, counts).shrunk(wanted)


def checked_budget(amount: float, action: str = "drain") -> Budget:
    """Return a budget.

    Raises
    ------
    ClusterError
        When the amount is not a positive number, or the action is unknown.
    """
    number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not number or not 0 < amount < math.inf:
        raise ClusterError(
            f"budget {amount!r} is not a positive amount of money", hint="write for example 12.50"
        )
    if action not in ACTIONS:
        raise ClusterError(f"budget_action {action!r} is none of {', '.join(ACTIONS)}")
    return Budget(float(amount), action)
