"""Costs of a running cluster: so far, per hour now, and for idle time."""

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
    """Hourly price of a machine or worker, and the rounding of billed time."""

    per_hour: float
    #: Shortest time that is billed.
    minimum_s: float = 0.0
    #: Billed time is rounded up to multiples of these seconds; 0 for no rounding.
    granularity_s: float = 0.0

    def billed_s(self, seconds: float) -> float:
        charged = max(seconds, self.minimum_s)
        if self.granularity_s > 0:
            # A multiple is not rounded up again because of floating-point errors.
            charged = math.ceil(charged / self.granularity_s - 1e-9) * self.granularity_s
        return max(charged, seconds)

    def cost(self, seconds: float) -> float:
        return self.per_hour * self.billed_s(seconds) / 3600.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the price from a dictionary, ignoring other keys."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: float(value) for key, value in data.items() if key in known})


@dataclass(frozen=True)
class Cost:
    """Amount spent, and the current rate."""

    cost: float = 0.0
    #: Part of the cost for time without tasks: starts, waiting, rest of a billing minimum.
    idle: float = 0.0
    #: Cost of one hour with the machines that run now.
    per_hour: float = 0.0

    def __add__(self, other: Self) -> Self:
        return dataclasses.replace(
            self,
            cost=self.cost + other.cost,
            idle=self.idle + other.idle,
            per_hour=self.per_hour + other.per_hour,
        )

    def to_dict(self) -> dict[str, float]:
        """Return the attributes, with amounts rounded to a millionth."""
        return {name: round(value, 6) for name, value in dataclasses.asdict(self).items()}


@dataclass(frozen=True)
class Costs:
    """The costs of a cluster."""

    #: Cost of the workers, by manager and tag.
    pools: Mapping[str, Mapping[str, Cost]] = field(default_factory=dict)
    #: Cost of the scheduler's own machine.
    scheduler: Cost = field(default_factory=Cost)
    #: Ids of managers with workers of unknown price, which count as free.
    unpriced: tuple[str, ...] = ()

    @property
    def total(self) -> Cost:
        return sum(self.by_manager().values(), self.scheduler)

    def by_manager(self) -> dict[str, Cost]:
        return {manager: sum(own.values(), Cost()) for manager, own in self.pools.items()}

    def by_tag(self) -> dict[str, Cost]:
        found: dict[str, Cost] = {}
        for own in self.pools.values():
            for tag, cost in own.items():
                found[tag] = found.get(tag, Cost()) + cost
        return found

    def to_dict(self) -> dict[str, Any]:
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
