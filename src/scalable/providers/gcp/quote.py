"""Machine of each worker of a target on Google Cloud, and its price."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.model import CostEstimate, DeploymentSpec, Diagnostic, ScalePlan
from scalable.model.prices import Offer
from scalable.pricing.tables import offers, shapes_of
from scalable.providers.quotes import (
    Machines,
    Quote,
    estimated,
    prices_in_force,
    spot_share,
    warnings_about,
)

PACKAGE = "scalable.providers.gcp"
#: Memory that a machine's operating system uses, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Environment variables with a region for targets without one, in order of precedence.
_REGION_VARIABLES = ("GOOGLE_CLOUD_REGION", "CLOUDSDK_COMPUTE_REGION")


def region_of(options: Mapping[str, Any]) -> str | None:
    """Return the region of a target, else of its zone, else of the environment."""
    if options.get("region"):
        return str(options["region"])
    if options.get("zone"):
        return str(options["zone"]).rpartition("-")[0]
    return next((os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name)), None)


def estimate_cost(spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
    """Return the cost of an hour with a plan's workers, or None without known prices."""
    return estimated(quote(spec), plan)


def price_warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings for unknown names in ``prices`` and for missing prices."""
    return warnings_about(PACKAGE, region_of(spec.options), spec, quote(spec))


def offers_for(region: str, spec: DeploymentSpec) -> list[Offer]:
    """Return the machine types of a region with the prices that apply to a target."""
    return offers(prices_in_force(PACKAGE, region, spec), shapes_of(PACKAGE))


def quote(spec: DeploymentSpec) -> Quote:
    """Return the prices of a target, which are empty if its region has none."""
    region = region_of(spec.options)
    if region is None:
        return Quote()
    first = spec.options.get("instance_type")
    types = (*([first] if first else []), *spec.options.get("instance_types", ()))
    spot = spot_share(spec.options.get("spot") or spec.options.get("preemptible"))
    return machines(offers_for(region, spec), types, spot).quote(spec)


def machines(offers: Sequence[Offer], types: Sequence[str] = (), spot: float = 0.0) -> Machines:
    """Return the machine types that a target may use, with the fraction ``spot`` at spot prices."""
    return Machines(offers, tuple(types), spot, RESERVED_BYTES, tight=True)
