"""Choice of the cheapest machine for one worker, and for a number of workers."""

from __future__ import annotations

from collections.abc import Iterable

from scalable.model.prices import Offer, Packing

#: Largest ratio of two costs that count as equal.
ALIKE = 1.01


def cheapest(
    offers: Iterable[Offer],
    cpus: float,
    memory_bytes: int,
    gpus: int = 0,
    *,
    region: str | None = None,
    spot: float = 0.0,
) -> Offer | None:
    """Return the cheapest machine that holds a worker, if any.
    Equal prices are ordered by cores, memory and name. ``spot`` is the fraction of machines at spot
    prices, 0 to 1. The given size must include programs that run next to the worker.
    """
    here = (offer for offer in offers if region in (None, offer.price.region))
    return next(iter(by_price(here, cpus, memory_bytes, gpus, spot=spot)), None)


def by_price(
    offers: Iterable[Offer], cpus: float, memory_bytes: int, gpus: int = 0, *, spot: float = 0.0
) -> list[Offer]:
    """Return the machines that hold a worker, in the order of :func:`cheapest`."""
    fitting = [offer for offer in offers if offer.shape.holds(cpus, memory_bytes, gpus)]
    return sorted(fitting, key=lambda offer: (offer.price.expected(spot), *_size(offer)))


def packed(
    offers: Iterable[Offer],
    cpus: float,
    memory_bytes: int,
    gpus: int = 0,
    *,
    wanted: int,
    spot: float = 0.0,
    reserved_bytes: int = 0,
    most_units: int | None = None,
) -> Packing | None:
    """Return the machine on which ``wanted`` workers cost least, and the workers per machine.
    The last machine may not be full. Among costs up to :data:`ALIKE` times the least, the fewest
    workers per machine win, so that a lost or partly idle machine costs less. ``reserved_bytes`` of
    each machine are kept for the operating system. Return None if no machine holds a worker.
    """
    wanted = max(1, wanted)
    found: list[tuple[float, Packing]] = []
    for offer in offers:
        shape = offer.shape
        usable = shape.memory_bytes - reserved_bytes
        room = shape.holds(cpus, memory_bytes, gpus) if usable > 0 else 0
        if memory_bytes:
            room = min(room, usable // memory_bytes)
        units = min(room, wanted, room if most_units is None else most_units)
        if units >= 1:
            machines = -(-wanted // units)
            found.append((machines * offer.price.expected(spot), Packing(offer, units, spot)))
    limit = ALIKE * min((cost for cost, _ in found), default=0.0)
    alike = [(packing.units, cost, packing) for cost, packing in found if cost <= limit]
    order = min(alike, key=lambda one: (one[0], one[1], *_size(one[2].offer)), default=None)
    return None if order is None else order[2]


def _size(offer: Offer) -> tuple[float, int, str]:
    return offer.shape.cpus, offer.shape.memory_bytes, offer.shape.name
