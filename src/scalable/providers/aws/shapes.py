"""Choice of instance types, without I/O."""

from __future__ import annotations

from collections.abc import Sequence

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.model.prices import Offer, Shape
from scalable.pricing.tables import offers, shapes_of
from scalable.providers.aws.quote import PACKAGE, RESERVED_BYTES, machines
from scalable.providers.quotes import most_units, prices_in_force

#: Number of instance types that are tried if the target names none.
TRIED = 6
#: Instance families with ARM processors that :func:`is_arm` cannot derive from the name.
_ARM = ("a1.", "t4g.", "im4gn.", "is4gen.", "g5g.")


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has ARM processors: ``g`` after the generation."""
    family = instance_type.partition(".")[0]
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return instance_type.startswith(_ARM) or letters.startswith("g")


def shape_named(name: str) -> Shape | None:
    """Return the shape of an instance type, or None if the table does not have it."""
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

    Named ``types`` are returned unchanged, others by price with the fraction ``spot`` at spot
    prices. ``cpus``, ``memory_bytes`` and ``gpus`` are the size of one unit. Raises ProviderError
    if a named type is too small for one unit, or no known type is large enough.
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
    """Return the instance types of a region with the prices that apply to a target."""
    if region is None:
        return []
    return offers(list(prices_in_force(PACKAGE, region, spec)), shapes_of(PACKAGE))


def units_on(
    known: Sequence[Offer], types: Sequence[str], component: ComponentSpec, spot_share: float
) -> int:
    """Return the number of a component's units that share one instance, as in its plan."""
    size = (component.cpus, component.memory_bytes or 0, component.gpus)
    choice = machines(known, types, spot_share)
    packing = choice.packing(*size, most_units=most_units(component.workers))
    return 1 if packing is None else packing.units
