"""Prices of the machines of a target on Google Cloud: which machine a worker gets, and its cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.planning.machines import cheapest, packed
from scalable.providers.quotes import (
    Quote,
    estimated,
    most_units,
    prices_in_force,
    program_rates,
    said_shape,
    shared_rate,
    spot_share,
    warnings_about,
)
from scalable.providers.tables import offers, shapes_of
from scalable.spec import ComponentSpec, CostEstimate, DeploymentSpec, Diagnostic, ScalePlan
from scalable.spec.prices import Offer, Packing, Price, Rate

PACKAGE = "scalable.providers.gcp"
#: Memory that the operating system of a machine keeps, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Environment variables that name a region where the target does not, the first one first.
_REGION_VARIABLES = ("GOOGLE_CLOUD_REGION", "CLOUDSDK_COMPUTE_REGION")


def region_of(options: Mapping[str, Any]) -> str | None:
    """Return the region of a target: its own, else that of its zone, else of the environment."""
    if options.get("region"):
        return str(options["region"])
    if options.get("zone"):
        return str(options["zone"]).rpartition("-")[0]
    return next((os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name)), None)


def estimate_cost(spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
    """Return the cost of an hour with the workers of a plan; None where no price is known."""
    return estimated(quote(spec), plan)


def price_warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings about names in ``prices`` that nothing has, and about missing prices."""
    return warnings_about(PACKAGE, region_of(spec.options), spec, quote(spec))


def offers_for(region: str, spec: DeploymentSpec) -> list[Offer]:
    """Return the machine types of a region with the prices that count for a target."""
    return offers(prices_in_force(PACKAGE, region, spec), shapes_of(PACKAGE))


def quote(spec: DeploymentSpec) -> Quote:
    """Return the prices of a target; empty where its region has none."""
    region = region_of(spec.options)
    if region is None:
        return Quote()
    machines = offers_for(region, spec)
    spot = spot_share(spec.options.get("spot") or spec.options.get("preemptible"))
    first = spec.options.get("instance_type")
    types = (*([first] if first else []), *spec.options.get("instance_types", ()))
    rates, notes = {}, []
    for tag, component in spec.components.items():
        rate = _rate(machines, component, types, spot)
        if rate is None:
            continue
        rates[tag] = rate
        notes.append(said_shape(tag, rate))

    def program(cpus: float, memory_bytes: int) -> Price | None:
        packing = packing_of(machines, cpus, memory_bytes, types=types, most_units=1)
        return None if packing is None else packing.offer.price

    return Quote(rates, program_rates(program), tuple(notes))


def _rate(
    machines: Sequence[Offer], component: ComponentSpec, types: Sequence[str], spot: float
) -> Rate | None:
    """Return the price of a component's workers; None where no machine for them has one."""
    cpus, memory, gpus = component.cpus, component.memory_bytes or 0, component.gpus
    most = most_units(component.workers)
    packing = packing_of(machines, cpus, memory, gpus, types=types, spot=spot, most_units=most)
    if packing is None or types:
        return None if packing is None else packing.rate

    def price_of(count: int) -> Price | None:
        if count == packing.units:
            return packing.offer.price
        size = (count * cpus, count * memory + RESERVED_BYTES, count * gpus)
        found = cheapest(machines, *size, spot=spot)
        return None if found is None else found.price

    return shared_rate(packing.units, price_of, spot)


def packing_of(
    machines: Sequence[Offer],
    cpus: float,
    memory_bytes: int,
    gpus: int = 0,
    *,
    types: Sequence[str] = (),
    spot: float = 0.0,
    most_units: int,
) -> Packing | None:
    """Return the machine type for workers, and how many share one; None if none has a price.

    Parameters
    ----------
    machines
        Machine types of the region with their prices.
    cpus, memory_bytes, gpus
        Size of one worker.
    types
        Machine types that the target names: the first one with a price is taken. Empty for the one
        on which workers cost least.
    spot
        Fraction of the machines at spot prices.
    most_units
        Upper limit of workers on one machine, for which the choice is made.
    """
    if types:
        named = {offer.shape.name: offer for offer in machines}
        machines = [named[name] for name in types if name in named][:1]
    size = (cpus, memory_bytes, gpus)
    best = packed(machines, *size, wanted=most_units, spot=spot, reserved_bytes=RESERVED_BYTES)
    if best is None and types:
        # A type that is named holds one worker of its whole size.
        best = packed(machines, *size, wanted=most_units, spot=spot, most_units=1)
    return best
