"""Choice of machine types for workers by the plan's prices, without I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scalable.model import ComponentSpec
from scalable.model.prices import Offer, Price, Shape
from scalable.pricing.tables import offers, prices_of, shapes_of
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.quote import RESERVED_BYTES, machines
from scalable.providers.quotes import most_units

#: Number of machine types that are tried, and their maximum price in multiples of the cheapest.
ALTERNATIVES, DEAREST = 4, 2.0
#: Region whose prices order machine types if the table does not have the target's region.
OTHERWISE = "us-central1"
_CUSTOM = re.compile(r"(?:[a-z0-9]+-)?custom-(?P<cpus>\d+)-(?P<megabytes>\d+)(?:-ext)?")


def offers_in(config: Config) -> list[Offer]:
    """Return the machine types of a region with their prices."""
    return list(config.offers) or instances(config.region) or instances(OTHERWISE)


def shape_named(name: str, offers: Iterable[Offer]) -> Shape | None:
    """Return the size of a machine type, or None if it is unknown."""
    found = _CUSTOM.fullmatch(name)
    if found is not None:
        return Shape(name, float(found["cpus"]), int(found["megabytes"]) * 2**20)
    return next((offer.shape for offer in offers if offer.shape.name == name), None)


def units_on(config: Config, component: ComponentSpec) -> int:
    """Return the number of a component's workers that share one machine."""
    size = (component.cpus, component.memory_bytes or 0, component.gpus)
    offers = offers_in(config)
    if config.instance_types:
        # Each type has to hold them. A type of unknown size holds one.
        known = [shape_named(name, offers) for name in config.instance_types]
        held = [_held(shape, *size) if shape else 1 for shape in known]
        return max(1, min(*held, most_units(component.workers)))
    choice = machines(offers, spot=config.spot_share)
    best = choice.packing(*size, most_units=most_units(component.workers))
    return 1 if best is None else best.units


def _held(shape: Shape, cpus: float, memory_bytes: int, gpus: int) -> int:
    """Return the number of workers that a machine holds besides its system, at least 1."""
    usable = Shape(shape.name, shape.cpus, shape.memory_bytes - RESERVED_BYTES, shape.gpus)
    return max(1, usable.holds(cpus, memory_bytes, gpus))


def candidates(
    config: Config, cpus: float, memory_bytes: int, gpus: int = 0, *, spot: float = 0.0
) -> list[str]:
    """Return the machine types to try, the best first, for the size of all workers together."""
    if config.instance_types:
        return list(config.instance_types)
    fitting = machines(offers_in(config), spot=spot).by_price(cpus, memory_bytes, gpus)
    chosen: dict[str, Offer] = {}
    for offer in fitting:
        # One of each family: families have separate capacity and quotas.
        family = offer.shape.name.partition("-")[0]
        if offer.price.expected(spot) <= DEAREST * fitting[0].price.expected(spot):
            chosen.setdefault(family, offer)
    return [offer.shape.name for offer in chosen.values()][:ALTERNATIVES]


# Prices -------------------------------------------------------------------------------------------

_PACKAGE = "scalable.providers.gcp"


def regions() -> list[str]:
    """Return the regions of the table, in its order."""
    return list(dict.fromkeys(price.region for price in prices_of(_PACKAGE)))


def prices(region: str) -> list[Price]:
    """Return the prices of a region, or an empty list if the table does not have it."""
    return [price for price in prices_of(_PACKAGE) if price.region == region]


def instances(region: str) -> list[Offer]:
    """Return a region's machine types, such as ``n1-standard-4+t4x1`` with a T4, and prices."""
    return offers(prices(region), shapes_of(_PACKAGE))
