"""Costs of a running cluster: so far, for the present hour, and for time without calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

#: Currency of prices and budgets.
CURRENCY = "USD"


@dataclass(frozen=True)
class HourlyPrice:
    """The price of a machine or a worker, and how its time is rounded for the bill.

    Attributes
    ----------
    per_hour
        Price of one hour.
    minimum_s
        Shortest time that is charged, in seconds.
    granularity_s
        Length in seconds to which the time is rounded up; 0 for no rounding.
    """

    per_hour: float
    minimum_s: float = 0.0
    granularity_s: float = 0.0

    def billed_s(self, seconds: float) -> float:
        """Return the seconds that are charged for a use of this length."""
        charged = max(seconds, self.minimum_s)
        if self.granularity_s > 0:
            # A length that is a multiple but for rounding errors is not rounded up once more.
            charged = math.ceil(charged / self.granularity_s - 1e-9) * self.granularity_s
        return max(charged, seconds)

    def cost(self, seconds: float) -> float:
        """Return the cost of a use of this length."""
        return self.per_hour * self.billed_s(seconds) / 3600.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the rate with these fields; other keys are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: float(value) for key, value in data.items() if key in known})


@dataclass(frozen=True)
class Cost:
    """An amount of money that was spent, and the present rate.

    Attributes
    ----------
    cost
        Cost so far.
    idle
        Part of the cost that was paid for time without calls: starts, waiting, and the rest of a
        billing minimum.
    per_hour
        Cost of one hour with the machines that run now.
    """

    cost: float = 0.0
    idle: float = 0.0
    per_hour: float = 0.0

    def __add__(self, other: Self) -> Self:
        """Return the sum."""
        return dataclasses.replace(
            self,
            cost=self.cost + other.cost,
            idle=self.idle + other.idle,
            per_hour=self.per_hour + other.per_hour,
        )

    def to_dict(self) -> dict[str, float]:
        """Return the attributes, amounts rounded to a millionth."""
        return {name: round(value, 6) for name, value in dataclasses.asdict(self).items()}


@dataclass(frozen=True)
class Costs:
    """The costs of a cluster.

    Attributes
    ----------
    pools
        Manager -> tag -> cost of its workers.
    scheduler
        Cost of the scheduler's own machine.
    unpriced
        Ids of managers with workers whose price is not known; these workers count as free.
    """

    pools: Mapping[str, Mapping[str, Cost]] = field(default_factory=dict)
    scheduler: Cost = field(default_factory=Cost)
    unpriced: tuple[str, ...] = ()

    @property
    def total(self) -> Cost:
        """Cost of the whole cluster."""
        return sum(self.by_manager().values(), self.scheduler)

    def by_manager(self) -> dict[str, Cost]:
        """Return manager -> cost of its workers."""
        return {manager: sum(own.values(), Cost()) for manager, own in self.pools.items()}

    def by_tag(self) -> dict[str, Cost]:
        """Return tag -> cost of its workers, summed over the managers."""
        found: dict[str, Cost] = {}
        for own in self.pools.values():
            for tag, cost in own.items():
                found[tag] = found.get(tag, Cost()) + cost
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: the total, and the parts by pool and by manager."""
        return {
            "currency": CURRENCY,
            **self.total.to_dict(),
            "scheduler": self.scheduler.to_dict(),
            "pools": {tag: cost.to_dict() for tag, cost in self.by_tag().items()},
            "managers": {
                manager: {
                    **total.to_dict(),
                    "pools": {tag: cost.to_dict() for tag, cost in self.pools[manager].items()},
                }
                for manager, total in self.by_manager().items()
            },
            "unpriced": list(self.unpriced),
        }
