"""Budgets: spending stages, and the worker counts each allows. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from scalable.errors import ClusterError
from scalable.model.costs import CURRENCY
from scalable.units import format_amount

#: Fraction of a budget after which no pool grows.
HELD_AT = 0.8


class Stage(StrEnum):
    """Stage in the spending of a budget."""

    OPEN = "open"
    HELD = "held"
    SPENT = "spent"


@dataclass(frozen=True)
class Ceiling:
    """Largest worker counts that a budget allows at its current stage."""

    stage: Stage = Stage.OPEN
    #: Largest counts while no pool may grow. A missing tag may have no worker.
    counts: Mapping[str, int] | None = None

    def allows(self, tag: str, count: int) -> int:
        """Return ``count``, or the allowed count of the pool if that is smaller."""
        return count if self.counts is None else min(count, self.counts.get(tag, 0))

    def limited(self, wanted: Mapping[str, int]) -> dict[str, int]:
        return {tag: self.allows(tag, count) for tag, count in wanted.items()}

    def shrunk(self, wanted: Mapping[str, int]) -> Self:
        """Return a ceiling of at most ``wanted``, so that reduced pools do not grow again."""
        if self.counts is None:
            return self
        return replace(self, counts={t: min(n, wanted.get(t, n)) for t, n in self.counts.items()})


def next_ceiling(
    before: Ceiling,
    budget: float | None,
    spent: float,
    *,
    wanted: Mapping[str, int],
    present: Mapping[str, int],
) -> Ceiling:
    """Return the ceiling for the current spending.
    From 80 % of the budget on, a pool keeps at most the workers that it has at that moment. Lost
    workers may be replaced. ``present`` is the number of charged or connected workers by tag.
    """
    if budget is None or spent < HELD_AT * budget:
        return Ceiling()
    counts = before.counts
    if counts is None:
        counts = {tag: min(count, present.get(tag, 0)) for tag, count in wanted.items()}
    return Ceiling(Stage.SPENT if spent >= budget else Stage.HELD, counts).shrunk(wanted)


def describe_spent(spent: float, budget: float) -> str:
    """Return a phrase for messages: the amount spent, the budget and the percentage."""
    share = math.floor(100 * spent / budget)
    amount = f"{format_amount(budget, CURRENCY)} {CURRENCY}"
    return f"{format_amount(spent, CURRENCY)} of the budget of {amount} are spent ({share} %)"


def checked_budget(amount: float) -> float:
    """Return a budget, or raise ClusterError if it is not a positive number."""
    number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not number or not 0 < amount < math.inf:
        raise ClusterError(
            f"budget {amount!r} is not a positive amount of money", hint="write, for example, 12.50"
        )
    return float(amount)
