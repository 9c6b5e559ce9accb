"""Options for machines in a target, machine types, and their prices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, CostEstimate, DeploymentSpec, Diagnostic, ScalePlan
from scalable.model.prices import Offer, Price, Shape
from scalable.pricing.tables import offers, prices_of, shapes_of
from scalable.providers.gcp.options import GCPOptions
from scalable.providers.quotes import (
    Machines,
    Quote,
    estimated,
    most_units,
    prices_in_force,
    spot_share,
    warnings_about,
)
from scalable.units import parse_bytes

# Prices of a target -------------------------------------------------------------------------------


PACKAGE = "scalable.providers.gcp"
#: Memory that a machine's operating system uses, in bytes.
RESERVED_BYTES = 400 * 2**20
#: Environment variables with a region for targets without one, in order of precedence.
_REGION_VARIABLES = ("GOOGLE_CLOUD_REGION", "CLOUDSDK_COMPUTE_REGION")


def region_of(options: Mapping[str, Any]) -> str | None:
    """Return a target's region: from its options, its zone, or else the environment."""
    if options.get("region"):
        return str(options["region"])
    if options.get("zone"):
        return str(options["zone"]).rpartition("-")[0]
    return next((os.environ[name] for name in _REGION_VARIABLES if os.environ.get(name)), None)


def estimate_cost(spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
    """Return the hourly cost of a plan's workers, or None without known prices."""
    return estimated(quote(spec), plan)


def price_warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings for unknown names in ``prices`` and for missing prices."""
    return warnings_about(PACKAGE, region_of(spec.options), spec, quote(spec))


def offers_for(region: str, spec: DeploymentSpec) -> list[Offer]:
    """Return a region's machine types, with the prices that apply to a target."""
    return offers(prices_in_force(PACKAGE, region, spec), shapes_of(PACKAGE))


def quote(spec: DeploymentSpec) -> Quote:
    """Return a target's prices, or an empty quote if its region has none."""
    region = region_of(spec.options)
    if region is None:
        return Quote()
    first = spec.options.get("instance_type")
    types = (*([first] if first else []), *spec.options.get("instance_types", ()))
    spot = spot_share(spec.options.get("preemptible"))
    return machines(offers_for(region, spec), types, spot).quote(spec)


def machines(offers: Sequence[Offer], types: Sequence[str] = (), spot: float = 0.0) -> Machines:
    """Return a target's machine types, with the fraction ``spot`` at spot prices."""
    return Machines(offers, tuple(types), spot, RESERVED_BYTES, tight=True)


@dataclass(frozen=True)
class Config:
    """Configuration of machines: their site and properties."""

    region: str
    #: Zone; empty for any zone of the region.
    zone: str = ""
    #: Project; empty for the project of the credentials.
    project: str = ""
    #: Machine types in the order in which they are tried; empty for the cheapest that fit.
    instance_types: tuple[str, ...] = ()
    #: Name, or path that starts with ``projects/``.
    network: str = "default"
    #: Name, or path that starts with ``projects/``; empty for the network's own subnetwork.
    subnetwork: str = ""
    #: Tags that all machines have in addition to their cluster's tags.
    network_tags: tuple[str, ...] = ()
    #: True if machines have a public address.
    external_ip: bool = True
    #: Address ranges of clients, in CIDR notation.
    clients_from: tuple[str, ...] = ("0.0.0.0/0",)
    #: E-mails of the machines' accounts; empty for the project's default account.
    service_account: str = ""
    manager_service_account: str = ""
    #: Image of the boot disk, as a path that starts with ``projects/``.
    machine_image: str = "projects/cos-cloud/global/images/family/cos-stable"
    disk_gb: int = 30
    disk_type: str = "pd-balanced"
    #: Seconds after which the cloud deletes a machine in any case. None for never.
    longest_s: float | None = None
    #: Share of spot machines among the machines with workers, from 0 to 1.
    spot_share: float = 0.0
    #: Machine types with the prices that apply; empty for this package's table.
    offers: tuple[Offer, ...] = ()

    def account(self, manages: bool) -> str:
        """Return the e-mail address of a manager's or another machine's account."""
        return (self.manager_service_account if manages else "") or self.service_account

    def place(self) -> dict[str, str]:
        """Return the clusters' site as it appears in records."""
        return {"project": self.project, "region": self.region}


def config_of(options: Mapping[str, Any], lifetime_s: float | None = None) -> Config:
    """Return the configuration in a target's options. Raises ProviderError without a region."""
    options = GCPOptions().model_dump() | dict(options)
    region = region_of(options)
    if region is None:
        raise ProviderError(
            "no region of Google Cloud is named",
            hint="set region or zone of the target, or GOOGLE_CLOUD_REGION",
        )
    first = (options["instance_type"],) if options["instance_type"] else ()
    return Config(
        region=region,
        zone=options["zone"] or "",
        project=options["project_id"] or "",
        instance_types=tuple(dict.fromkeys((*first, *options["instance_types"]))),
        network=options["network"],
        subnetwork=options["subnetwork"] or "",
        network_tags=tuple(options["network_tags"]),
        external_ip=options["external_ip"],
        clients_from=tuple(options["clients_from"]),
        service_account=options["service_account"] or "",
        manager_service_account=options["manager_service_account"] or "",
        machine_image=options["machine_image"],
        disk_gb=max(10, -(-parse_bytes(options["disk"]) // 10**9)),
        disk_type=options["disk_type"],
        longest_s=lifetime_s,
        spot_share=float(options["preemptible"]),
    )


# Machine types ------------------------------------------------------------------------------------


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
    """Return how many workers fit on a machine with its operating system, at least 1."""
    usable = Shape(shape.name, shape.cpus, shape.memory_bytes - RESERVED_BYTES, shape.gpus)
    return max(1, usable.holds(cpus, memory_bytes, gpus))


def candidates(
    config: Config, cpus: float, memory_bytes: int, gpus: int = 0, *, spot: float = 0.0
) -> list[str]:
    """Return the machine types to try for the workers' total size, the best first."""
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


# Table --------------------------------------------------------------------------------------------

_PACKAGE = "scalable.providers.gcp"


def regions() -> list[str]:
    """Return the regions of the price table in order."""
    return list(dict.fromkeys(price.region for price in prices_of(_PACKAGE)))


def prices(region: str) -> list[Price]:
    """Return the prices of a region. The list is empty for an unknown region."""
    return [price for price in prices_of(_PACKAGE) if price.region == region]


def instances(region: str) -> list[Offer]:
    """Return a region's machine types and prices. ``n1-standard-4+t4x1`` has one T4."""
    return offers(prices(region), shapes_of(_PACKAGE))
