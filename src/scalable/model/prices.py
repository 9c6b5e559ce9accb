"""Prices of machines, and the machine shapes they apply to."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from scalable.model.codec import Noun

#: Age in days above which a price is called old.
OLD_DAYS = 180

#: Amounts that a price is for: a whole machine, a core, or 2**30 bytes of memory.
UNITS = ("instance", "vcpu", "gb")
#: Places where prices are found: the manifest, and the table of the package.
ORIGINS = ("manifest", "table")


@dataclass(frozen=True)
class Shape:
    """Machine size offered by a provider."""

    #: The provider's own name, such as ``m6i.large``.
    name: str
    cpus: float
    #: Memory in bytes, including the part that the operating system takes.
    memory_bytes: int
    gpus: int = 0
    #: Short name such as ``l4``. None without GPUs.
    gpu_type: str | None = None

    def holds(self, cpus: float, memory_bytes: int, gpus: int = 0) -> int:
        """Return the number of workers of this size that fit on one machine.
        A machine with GPUs does not take workers without GPUs, because it is far more expensive.
        """
        if self.gpus and not gpus:
            return 0
        fits = [self.cpus / cpus if cpus else math.inf]
        fits.append(self.memory_bytes / memory_bytes if memory_bytes else math.inf)
        fits.append(self.gpus / gpus if gpus else math.inf)
        least = min(fits)
        return 1 if least == math.inf else int(least + 1e-9)


@dataclass(frozen=True)
class Price(Noun):
    """A price for one shape in one region."""

    #: Name of the shape, or of the resource if cores and memory are billed separately.
    shape: str
    region: str
    #: On-demand price of one hour in USD.
    per_hour: float
    #: Least and greatest USD at spot prices, or None if unknown.
    spot_per_hour: tuple[float, float] | None = None
    #: One of :data:`UNITS`, the amount that ``per_hour`` is for.
    unit: str = "instance"
    #: Shortest time that is billed.
    minimum_s: float = 60.0
    #: Billed time is rounded up to multiples of these seconds.
    granularity_s: float = 1.0
    #: Day of the price (ISO 8601).
    date: str | None = None
    #: Address where the provider publishes the price, or the name of the manifest's option.
    source: str = ""
    #: One of :data:`ORIGINS`.
    origin: str = "table"

    def age_days(self, today: dt.date) -> int | None:
        return None if self.date is None else (today - dt.date.fromisoformat(self.date)).days

    def is_old(self, today: dt.date) -> bool:
        age = self.age_days(today)
        return age is not None and age > OLD_DAYS

    def hourly(self, spot: float = 0.0) -> tuple[float, float]:
        """Return the least and greatest USD per hour, with a fraction ``spot`` at spot prices.
        If spot prices are unknown, that fraction costs between 0 and the on-demand price.
        """
        low, high = self.spot_per_hour or (0.0, self.per_hour)
        demand = (1 - spot) * self.per_hour
        return demand + spot * low, demand + spot * high

    def expected(self, spot: float = 0.0) -> float:
        """Return the USD per hour assumed in plans. A spot price is the middle of its range."""
        if not spot or self.spot_per_hour is None:
            return self.per_hour
        return sum(self.hourly(spot)) / 2


@dataclass(frozen=True)
class Rate(Noun):
    """Price of the machines for one pool or one program."""

    price: Price
    #: Number of workers on one machine.
    units: int = 1
    #: Fraction of the machines at spot prices, 0 to 1.
    spot: float = 0.0
    #: USD per hour of the machine for 1, 2, ... ``units - 1`` workers; empty if it is the same.
    smaller: tuple[float, ...] = ()

    @property
    def per_unit_hour(self) -> float:
        """USD per hour for one worker on a full machine."""
        return self.price.expected(self.spot) / self.units

    def hourly(self, workers: int) -> float:
        """Return the USD per hour of the machines for these workers."""
        full, rest = divmod(workers, self.units)
        each = self.price.expected(self.spot)
        if not rest:
            return full * each
        return full * each + (self.smaller[rest - 1] if self.smaller else each)

    @property
    def spread(self) -> tuple[float, float]:
        """Least and greatest cost divided by the expected one. Both are 1 without spot prices."""
        expected = self.price.expected(self.spot)
        if not expected:
            return 1.0, 1.0
        low, high = self.price.hourly(self.spot)
        return low / expected, high / expected


@dataclass(frozen=True)
class Offer:
    """A shape with its price for a whole machine in one region."""

    shape: Shape
    price: Price


@dataclass(frozen=True)
class Packing:
    """A machine, and the number of equal workers planned for it."""

    offer: Offer
    #: Number of workers on the machine.
    units: int
    #: Fraction of the machines at spot prices.
    spot: float = 0.0

    @property
    def rate(self) -> Rate:
        return Rate(self.offer.price, self.units, self.spot)

    @property
    def per_unit_hour(self) -> float:
        return self.rate.per_unit_hour
