"""The choice of instance types. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from scalable.errors import ProviderError
from scalable.providers.aws.quote import PACKAGE, RESERVED_BYTES, machines
from scalable.providers.quotes import most_units, prices_in_force
from scalable.providers.tables import offers, shapes_of
from scalable.spec import ComponentSpec, DeploymentSpec
from scalable.spec.prices import Offer, Shape

#: Number of instance types that are tried where the target names none.
TRIED = 6
#: Architecture of processors by the family of the instance type, where it is not x86.
_ARM = ("a1.", "t4g.", "im4gn.", "is4gen.", "g5g.")


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has processors by ARM: ``g`` after the generation."""
    family = instance_type.partition(".")[0]
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return instance_type.startswith(_ARM) or letters.startswith("g")


def shape_named(name: str) -> Shape | None:
    """Return the shape of an instance type; None if the table does not have it."""
    return shapes_of(PACKAGE).get(name)


def chosen(
    known: Sequence[Offer],
    types: Sequence[str],
    cpus: float,
    memory_bytes: int,
    gpus: int,
    units: int = 1,
    spot: float = 0.0,
) -> list[str]:
    """Return the instance types for a machine, in the order in which they are tried.

    Parameters
    ----------
    known
        Instance types of the region with their prices.
    types
        Types that the target names, which are taken as they are; empty for the cheapest.
    cpus, memory_bytes, gpus
        Size of one unit.
    units
        Number of units on the machine.
    spot
        Fraction of spot prices by which types are compared.

    Raises
    ------
    ProviderError
        When a named type is too small for one unit, or no known type is large enough.
    """
    wanted = f"{cpus:g} cpus, {memory_bytes / 2**30:.4g} GiB, {gpus} gpus"
    if types:
        for name in types:
            shape = shape_named(name)
            if shape is not None and not shape.holds(cpus, memory_bytes + RESERVED_BYTES, gpus):
                raise ProviderError(
                    f"{name} ({shape.cpus:g} cpus, {shape.memory_bytes / 2**30:g} GiB, "
                    f"{shape.gpus} gpus) is too small for a worker with {wanted}, and "
                    f"{RESERVED_BYTES / 2**30:.1f} GiB for the system",
                    hint="name a larger type, or leave instance_type out",
                )
        return list(types)
    usable = machines(known, (), spot)
    fitting = usable.by_price(cpus * units, memory_bytes * units, gpus * units)
    if not fitting:
        raise ProviderError(
            f"no instance type whose price is known in the region holds {wanted}"
            + (f", {units} times" if units > 1 else ""),
            hint="name one in the target's instance_type",
        )
    return [offer.shape.name for offer in fitting[:TRIED]]


def offers_for(region: str | None, spec: DeploymentSpec) -> list[Offer]:
    """Return the instance types of a region with the prices that count for a target."""
    if region is None:
        return []
    return offers(list(prices_in_force(PACKAGE, region, spec)), shapes_of(PACKAGE))


def units_on(
    known: Sequence[Offer], types: Sequence[str], component: ComponentSpec, spot_share: float
) -> int:
    """Return the number of units of a component that share one instance, as its plan has it."""
    size = (component.cpus, component.memory_bytes or 0, component.gpus)
    choice = machines(known, types, spot_share)
    packing = choice.packing(*size, most_units=most_units(component.workers))
    return 1 if packing is None else packing.units
