"""The choice of machine types for workers. Pure; prices are those of this package."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scalable.planning.machines import packed
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.prices import instances
from scalable.spec.prices import Offer, Shape

#: Memory that the operating system of a machine keeps, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Limits for packing: workers on one machine, and number of them that a choice is made for.
MOST_UNITS, WANTED = 8, 8
#: Number of machine types that are tried, and the price up to which, as a multiple of the cheapest.
ALTERNATIVES, DEAREST = 4, 2.0
#: Region whose prices order machine types where the table does not have a region.
OTHERWISE = "us-central1"
_CUSTOM = re.compile(r"(?:[a-z0-9]+-)?custom-(?P<cpus>\d+)-(?P<megabytes>\d+)(?:-ext)?")


def offers_in(region: str) -> list[Offer]:
    """Return the machine types of a region with their prices."""
    return instances(region) or instances(OTHERWISE)


def shape_named(name: str, offers: Iterable[Offer]) -> Shape | None:
    """Return the size of a machine type; None if it is not known here."""
    found = _CUSTOM.fullmatch(name)
    if found is not None:
        return Shape(name, float(found["cpus"]), int(found["megabytes"]) * 2**20)
    return next((offer.shape for offer in offers if offer.shape.name == name), None)


def units_on(config: Config, cpus: float, memory_bytes: int, gpus: int = 0) -> int:
    """Return the number of workers that share one machine."""
    offers = offers_in(config.region)
    if config.instance_types:
        # A size that is not known holds one worker.
        known = [shape_named(name, offers) for name in config.instance_types]
        held = [shape.holds(cpus, memory_bytes, gpus) if shape else 1 for shape in known]
        return max(1, min(held))
    best = packed(
        offers,
        cpus,
        memory_bytes,
        gpus,
        wanted=WANTED,
        reserved_bytes=RESERVED_BYTES,
        most_units=MOST_UNITS,
    )
    return 1 if best is None else best.units


def candidates(
    config: Config, cpus: float, memory_bytes: int, gpus: int = 0, *, spot: bool = False
) -> list[str]:
    """Return the machine types to try for a machine, the best first; empty if none fits.

    Parameters
    ----------
    config
        Place and options.
    cpus, memory_bytes, gpus
        Resources of all workers of the machine together.
    spot
        Whether spot prices count.
    """
    if config.instance_types:
        return list(config.instance_types)
    memory_bytes += RESERVED_BYTES
    fitting = [o for o in offers_in(config.region) if o.shape.holds(cpus, memory_bytes, gpus)]

    def price(offer: Offer) -> float:
        return offer.price.expected(float(spot))

    fitting.sort(key=lambda o: (price(o), o.shape.cpus, o.shape.memory_bytes, o.shape.name))
    chosen: dict[str, Offer] = {}
    for offer in fitting:
        # One of each family: families have capacity and quotas of their own.
        family = offer.shape.name.partition("-")[0]
        if price(offer) <= DEAREST * price(fitting[0]):
            chosen.setdefault(family, offer)
    return [offer.shape.name for offer in chosen.values()][:ALTERNATIVES]
