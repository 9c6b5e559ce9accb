"""Table of AWS prices in this package, by region."""

from __future__ import annotations

from scalable.providers.aws.sizes import FargateSize
from scalable.providers.tables import offers, prices_of, shapes_of
from scalable.spec.prices import Offer, Price

_PACKAGE = "scalable.providers.aws"
#: Names in the table of the two resources that Fargate bills.
FARGATE_CPU, FARGATE_MEMORY = "fargate-vcpu", "fargate-gb"


def regions() -> list[str]:
    """Return the regions of the table, in its order."""
    return list(dict.fromkeys(price.region for price in prices_of(_PACKAGE)))


def prices(region: str) -> list[Price]:
    """Return the prices of a region, or an empty list if the table does not have it."""
    return [price for price in prices_of(_PACKAGE) if price.region == region]


def instances(region: str) -> list[Offer]:
    """Return the instance types of a region with their prices."""
    return offers(prices(region), shapes_of(_PACKAGE))


def fargate_price(size: FargateSize, given: list[Price]) -> Price | None:
    """Return a Fargate task's price, or None if one of its resources has no price in ``given``."""
    by_name = {price.shape: price for price in given}
    cpu, memory = by_name.get(FARGATE_CPU), by_name.get(FARGATE_MEMORY)
    if cpu is None or memory is None:
        return None
    gib = size.memory_mib / 1024
    spot = None
    if cpu.spot_per_hour is not None and memory.spot_per_hour is not None:
        low, high = (
            size.vcpus * c + gib * m
            for c, m in zip(cpu.spot_per_hour, memory.spot_per_hour, strict=True)
        )
        spot = (low, high)
    return Price(
        shape=f"fargate {size.vcpus:g} vCPU {gib:g} GB",
        region=cpu.region,
        per_hour=size.vcpus * cpu.per_hour + gib * memory.per_hour,
        spot_per_hour=spot,
        minimum_s=max(cpu.minimum_s, memory.minimum_s),
        granularity_s=max(cpu.granularity_s, memory.granularity_s),
        date=min((p.date for p in (cpu, memory) if p.date), default=None),
        source=cpu.source,
        origin=min(cpu.origin, memory.origin),
    )
