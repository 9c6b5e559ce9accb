"""Sizes of Fargate tasks, and instance types with their prices."""

from __future__ import annotations

import configparser
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, CostEstimate, DeploymentSpec, Diagnostic, ScalePlan
from scalable.model.prices import Offer, Price, Rate, Shape
from scalable.pricing.tables import offers, prices_of, shapes_of
from scalable.providers.quotes import (
    Machines,
    Quote,
    estimated,
    most_units,
    prices_in_force,
    program_rates,
    spot_share,
    warnings_about,
)

# Fargate's sizes ----------------------------------------------------------------------------------


MIB = 2**20
#: Memory sizes in MiB by CPU units (AWS's developer guide for ECS).
_MEMORY: dict[int, tuple[int, ...]] = {
    256: (512, 1024, 2048),
    512: tuple(range(1024, 4096 + 1, 1024)),
    1024: tuple(range(2048, 8192 + 1, 1024)),
    2048: tuple(range(4096, 16384 + 1, 1024)),
    4096: tuple(range(8192, 30720 + 1, 1024)),
    8192: tuple(range(16384, 61440 + 1, 4096)),
    16384: tuple(range(32768, 122880 + 1, 8192)),
}


@dataclass(frozen=True)
class FargateSize:
    """A size that Fargate accepts, in the units of a task definition."""

    #: CPU units: 1024 for each vCPU.
    cpu_units: int
    memory_mib: int

    @property
    def vcpus(self) -> float:
        return self.cpu_units / 1024

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    def __str__(self) -> str:
        return f"{self.vcpus:g} vCPU, {self.memory_mib / 1024:g} GB"


#: All sizes, by vCPUs and memory.
SIZES = tuple(FargateSize(cpu, memory) for cpu, steps in _MEMORY.items() for memory in steps)


def fargate_size(cpus: float, memory_bytes: int | None = None) -> FargateSize:
    """Return the smallest Fargate size (fewest vCPUs first) for a worker. May raise ValueError."""
    least = math.ceil((memory_bytes or 0) / MIB)
    for size in SIZES:
        if size.vcpus >= cpus - 1e-9 and size.memory_mib >= least:
            return size
    largest = SIZES[-1]
    raise ValueError(
        f"{cpus:g} cpus with {least / 1024:g} GB are too large for Fargate, "
        f"whose largest size is {largest}"
    )


def rounding(tag: str, cpus: float, memory_bytes: int | None = None) -> str | None:
    """Return a sentence about the size that a worker is rounded up to, or None if it fits."""
    size = fargate_size(cpus, memory_bytes)
    if size.vcpus == cpus and (memory_bytes is None or size.memory_bytes == memory_bytes):
        return None
    asked = f"{cpus:g} cpu{'s' * (cpus != 1)}"
    if memory_bytes is not None:
        asked += f" and {memory_bytes / 2**30:.4g} GiB"
    return f"Workers of {tag!r} request {asked}; Fargate rounds them up to {size}."


# Prices -------------------------------------------------------------------------------------------


PACKAGE = "scalable.providers.aws"
#: Memory that an instance's operating system and agent use, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Families whose cores cannot all be used for long without extra cost; used only if named.
_BURSTABLE = ("t2.", "t3.", "t3a.", "t4g.")
#: Environment variables with a region for targets without one, in order of precedence.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def region_of(options: Mapping[str, Any]) -> str | None:
    """Return a target's region: from its options, the environment, or else the AWS profile."""
    named = options.get("region")
    if named:
        return str(named)
    for variable in _REGION_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    return _region_of_profile()


def _region_of_profile() -> str | None:
    given = os.environ.get("AWS_CONFIG_FILE")
    profile = os.environ.get("AWS_PROFILE", "default")
    parser = configparser.RawConfigParser()
    try:
        parser.read(Path(given) if given else Path.home() / ".aws" / "config", encoding="utf-8")
    except (configparser.Error, OSError, RuntimeError, UnicodeDecodeError):
        return None
    section = profile if profile == "default" else f"profile {profile}"
    return parser.get(section, "region", fallback=None)


def estimate_cost(spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
    """Return the hourly cost of a plan's workers, or None without known prices."""
    return estimated(quote(spec), plan)


def price_warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings for unknown names in ``prices`` and for missing prices."""
    return warnings_about(PACKAGE, region_of(spec.options), spec, quote(spec))


def quote(spec: DeploymentSpec) -> Quote:
    """Return a target's prices, or an empty quote if its region has none."""
    region = region_of(spec.options)
    if region is None:
        return Quote()
    given = prices_in_force(PACKAGE, region, spec)
    if spec.options.get("cluster_type") == "ec2":
        return _on_instances(spec, given)
    return _on_fargate(spec, given)


def _on_fargate(spec: DeploymentSpec, given: Sequence[Price]) -> Quote:
    spot = spot_share(spec.options.get("spot"))
    rates, notes = {}, []
    for tag, component in spec.components.items():
        try:
            size = fargate_size(component.cpus, component.memory_bytes)
        except ValueError:
            continue
        if component.gpus:
            continue  # Fargate has none
        price = fargate_price(size, list(given))
        if price is not None:
            rates[tag] = Rate(price, 1, spot)
        note = rounding(tag, component.cpus, component.memory_bytes)
        notes += [note] if note else []

    def program(cpus: float, memory_bytes: int) -> Price | None:
        return fargate_price(fargate_size(cpus, memory_bytes), list(given))

    return Quote(rates, program_rates(program), tuple(notes))


def _on_instances(spec: DeploymentSpec, given: Sequence[Price]) -> Quote:
    known = offers(list(given), shapes_of(PACKAGE))
    return machines(known, types_of(spec.options), spot_share(spec.options.get("spot"))).quote(spec)


def machines(known: Sequence[Offer], types: Sequence[str], spot: float) -> Machines:
    """Return the instance types for a target: those in ``types``, or all but burstable ones."""
    usable = known if types else [offer for offer in known if is_steady(offer)]
    return Machines(usable, tuple(types), spot, RESERVED_BYTES)


def is_steady(offer: Offer) -> bool:
    """Return whether all cores of a type can be used without a time limit."""
    return not offer.shape.name.startswith(_BURSTABLE)


def types_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a target's instance types, in the order in which they are tried."""
    first = options.get("instance_type")
    return tuple(dict.fromkeys([*([first] if first else []), *options.get("instance_types", ())]))


# Machine types ------------------------------------------------------------------------------------

_PACKAGE = "scalable.providers.aws"
#: Names in the table of the two resources that Fargate bills.
FARGATE_CPU, FARGATE_MEMORY = "fargate-vcpu", "fargate-gb"


def regions() -> list[str]:
    """Return the regions of the price table in order."""
    return list(dict.fromkeys(price.region for price in prices_of(_PACKAGE)))


def prices(region: str) -> list[Price]:
    """Return the prices of a region. The list is empty for an unknown region."""
    return [price for price in prices_of(_PACKAGE) if price.region == region]


def instances(region: str) -> list[Offer]:
    """Return the instance types of a region with their prices."""
    return offers(prices(region), shapes_of(_PACKAGE))


def fargate_price(size: FargateSize, given: list[Price]) -> Price | None:
    """Return a Fargate task's price, or None if a price is missing in ``given``."""
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


#: Number of instance types that are tried if the target names none.
TRIED = 6
#: Instance families with ARM processors that :func:`is_arm` cannot derive from the name.
_ARM = ("a1.", "t4g.", "im4gn.", "is4gen.", "g5g.")


def is_arm(instance_type: str) -> bool:
    """Return whether an instance type has ARM processors (a ``g`` after the generation)."""
    family = instance_type.partition(".")[0]
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return instance_type.startswith(_ARM) or letters.startswith("g")


def shape_named(name: str) -> Shape | None:
    """Return the shape of an instance type, or None if it is not in the table."""
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
    """Return the instance types to try for a machine, in order.
    Named ``types`` are returned unchanged. Others are sorted by price, with the fraction ``spot``
    at spot prices. Raises ProviderError if a named type is too small for one unit, or no known type
    is large enough.
    """
    wanted = f"{cpus:g} cpus, {memory_bytes / 2**30:.4g} GiB, {gpus} gpus"
    if types:
        for name in types:
            shape = shape_named(name)
            if shape is not None and not shape.holds(cpus, memory_bytes + RESERVED_BYTES, gpus):
                raise ProviderError(
                    f"{name} ({shape.cpus:g} cpus, {shape.memory_bytes / 2**30:g} GiB, "
                    f"{shape.gpus} gpus) is too small for a worker with {wanted} plus "
                    f"{RESERVED_BYTES / 2**30:.1f} GiB for the system",
                    hint="choose a larger type, or leave out instance_type",
                )
        return list(types)
    usable = machines(known, (), spot)
    fitting = usable.by_price(cpus * units, memory_bytes * units, gpus * units)
    if not fitting:
        raise ProviderError(
            f"no instance type with a known price in the region is large enough for {wanted}"
            + (f" ({units} workers for each machine)" if units > 1 else ""),
            hint="set instance_type of the target",
        )
    return [offer.shape.name for offer in fitting[:TRIED]]


def offers_for(region: str | None, spec: DeploymentSpec) -> list[Offer]:
    """Return a region's instance types, with the prices that apply to a target."""
    if region is None:
        return []
    return offers(list(prices_in_force(PACKAGE, region, spec)), shapes_of(PACKAGE))


def units_on(
    known: Sequence[Offer], types: Sequence[str], component: ComponentSpec, spot_share: float
) -> int:
    """Return the number of a component's units per instance, as in its plan."""
    size = (component.cpus, component.memory_bytes or 0, component.gpus)
    choice = machines(known, types, spot_share)
    packing = choice.packing(*size, most_units=most_units(component.workers))
    return 1 if packing is None else packing.units
