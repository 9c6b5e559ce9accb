"""Machine of each worker of a target on AWS, and its price."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.model import CostEstimate, DeploymentSpec, Diagnostic, ScalePlan
from scalable.model.prices import Offer, Price, Rate
from scalable.pricing.tables import offers, prices_of, shapes_of
from scalable.providers.aws.sizes import FargateSize, fargate_size, rounding
from scalable.providers.quotes import (
    Machines,
    Quote,
    estimated,
    prices_in_force,
    program_rates,
    spot_share,
    warnings_about,
)

PACKAGE = "scalable.providers.aws"
#: Memory that an instance's operating system and agent use, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Families whose cores cannot all be used for long without extra cost; used only if named.
_BURSTABLE = ("t2.", "t3.", "t3a.", "t4g.")
#: Environment variables with a region for targets without one, in order of precedence.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def region_of(options: Mapping[str, Any]) -> str | None:
    """Return the region of a target, else of the environment, else of the AWS profile."""
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
    """Return the cost of an hour with a plan's workers, or None without known prices."""
    return estimated(quote(spec), plan)


def price_warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings for unknown names in ``prices`` and for missing prices."""
    return warnings_about(PACKAGE, region_of(spec.options), spec, quote(spec))


def quote(spec: DeploymentSpec) -> Quote:
    """Return the prices of a target, which are empty if its region has none."""
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
    """Return the instance types that a target names, in the order in which they are tried."""
    first = options.get("instance_type")
    return tuple(dict.fromkeys([*([first] if first else []), *options.get("instance_types", ())]))


# Prices -------------------------------------------------------------------------------------------

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
