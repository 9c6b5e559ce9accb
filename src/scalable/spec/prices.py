"""Prices of machines and the shapes that they are paid for."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import asdict, dataclass
from typing import Any

#: Age in days above which a price is called old.
OLD_DAYS = 180

#: Amounts that a price is for: a whole machine, a core, or 2**30 bytes of memory.
UNITS = ("instance", "vcpu", "gb")
#: Places where prices are found: the manifest, and the table of the package.
ORIGINS = ("manifest", "table")


@dataclass(frozen=True)
class Shape:
    """A size of machine that a provider rents out.

    Attributes
    ----------
    name
        The provider's own name, such as ``m6i.large``.
    cpus
        Number of virtual cores.
    memory_bytes
        Memory in bytes, before the operating system takes its part.
    gpus
        Number of GPUs.
    gpu_type
        Short name of the GPUs, such as ``l4``; None without GPUs.
    """

    name: str
    cpus: float
    memory_bytes: int
    gpus: int = 0
    gpu_type: str | None = None

    def holds(self, cpus: float, memory_bytes: int, gpus: int = 0) -> int:
        """Return how many workers of the given size the machine holds; 0 if none fits.

        A machine with GPUs is not used for workers without: it costs a multiple.
        """
        if self.gpus and not gpus:
            return 0
        fits = [self.cpus / cpus if cpus else math.inf]
        fits.append(self.memory_bytes / memory_bytes if memory_bytes else math.inf)
        fits.append(self.gpus / gpus if gpus else math.inf)
        least = min(fits)
        return 1 if least == math.inf else int(least + 1e-9)


@dataclass(frozen=True)
class Price:
    """A price for one shape in one region.

    Attributes
    ----------
    shape
        Name of the shape, or of the resource where cores and memory are billed by themselves.
    region
        The provider's name of the region.
    per_hour
        USD for one hour on demand.
    spot_per_hour
        Least and greatest USD for one hour at spot prices; None where they are not known.
    unit
        One of :data:`UNITS`: the amount that ``per_hour`` is for.
    minimum_s
        Shortest time that is billed, in seconds.
    granularity_s
        Seconds to whose multiples the billed time is rounded up.
    date
        Day for which the price is known (ISO 8601).
    source
        Address at which the provider publishes the price, or the name of the manifest's option.
    origin
        One of :data:`ORIGINS`: where the number was found.
    """

    shape: str
    region: str
    per_hour: float
    spot_per_hour: tuple[float, float] | None = None
    unit: str = "instance"
    minimum_s: float = 60.0
    granularity_s: float = 1.0
    date: str | None = None
    source: str = ""
    origin: str = "table"

    def age_days(self, today: dt.date) -> int | None:
        """Return the age of the price in days; None without a date."""
        return None if self.date is None else (today - dt.date.fromisoformat(self.date)).days

    def is_old(self, today: dt.date) -> bool:
        """Return whether the price is older than :data:`OLD_DAYS`."""
        age = self.age_days(today)
        return age is not None and age > OLD_DAYS

    def hourly(self, spot: float = 0.0) -> tuple[float, float]:
        """Return the least and the greatest USD for one hour.

        Parameters
        ----------
        spot
            Fraction of the time at spot prices, 0 to 1. Where spot prices are not known, the
            greatest is the price on demand and the least is 0 for that fraction.
        """
        low, high = self.spot_per_hour or (0.0, self.per_hour)
        demand = (1 - spot) * self.per_hour
        return demand + spot * low, demand + spot * high

    def expected(self, spot: float = 0.0) -> float:
        """Return the USD for one hour that a plan counts with.

        At spot prices it is the middle of the range, or the price on demand where spot prices are
        not known.
        """
        if not spot or self.spot_per_hour is None:
            return self.per_hour
        return sum(self.hourly(spot)) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        data = asdict(self)
        return data | {"spot_per_hour": self.spot_per_hour and list(self.spot_per_hour)}


@dataclass(frozen=True)
class Rate:
    """The price of the machines of one pool, or of one program.

    Attributes
    ----------
    price
        Price of one machine.
    units
        Number of workers on one machine.
    spot
        Fraction of the machines at spot prices, 0 to 1.
    smaller
        USD for one hour of the machine that 1, 2, ... workers get, up to ``units - 1``; empty if
        they get the same machine.
    """

    price: Price
    units: int = 1
    spot: float = 0.0
    smaller: tuple[float, ...] = ()

    @property
    def per_unit_hour(self) -> float:
        """USD for one worker for one hour, if its machine is full."""
        return self.price.expected(self.spot) / self.units

    def hourly(self, workers: int) -> float:
        """Return the USD for one hour of the machines that the given workers need."""
        full, rest = divmod(workers, self.units)
        each = self.price.expected(self.spot)
        if not rest:
            return full * each
        return full * each + (self.smaller[rest - 1] if self.smaller else each)

    @property
    def spread(self) -> tuple[float, float]:
        """Least and greatest cost as multiples of the expected one; (1, 1) without spot prices."""
        expected = self.price.expected(self.spot)
        if not expected:
            return 1.0, 1.0
        low, high = self.price.hourly(self.spot)
        return low / expected, high / expected

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return {
            "price": self.price.to_dict(),
            "units": self.units,
            "spot": self.spot,
            "smaller": list(self.smaller),
        }


@dataclass(frozen=True)
class Offer:
    """A shape with its price in one region.

    Attributes
    ----------
    shape
        The shape.
    price
        Its price; ``unit`` is ``instance``.
    """

    shape: Shape
    price: Price


@dataclass(frozen=True)
class Packing:
    """A machine and the number of equal workers that it is to hold.

    Attributes
    ----------
    offer
        The machine with its price.
    units
        Number of workers on it.
    spot
        Fraction of the machines at spot prices.
    """

    offer: Offer
    units: int
    spot: float = 0.0

    @property
    def rate(self) -> Rate:
        """The price of its workers."""
        return Rate(self.offer.price, self.units, self.spot)

    @property
    def per_unit_hour(self) -> float:
        """USD for one worker for one hour, if the machine is full."""
        return self.rate.per_unit_hour
