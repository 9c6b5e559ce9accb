"""Options of a target of the gcp provider."""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from scalable.manifest.fields import (
    Argument,
    Memory,
)
from scalable.providers.remote.options import RemoteOptions


def _range(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise PydanticCustomError(
            "range", "must be a range of addresses, such as 203.0.113.0/24"
        ) from error
    return text


def _is_fraction(value: bool | float) -> bool | float:
    if not 0 <= value <= 1:
        raise PydanticCustomError("fraction", "must be true, false or a fraction from 0 to 1")
    return value


AddressRange: TypeAlias = Annotated[Argument, AfterValidator(_range)]
"""Range of addresses in CIDR notation."""

Fraction: TypeAlias = Annotated[
    bool | float,
    AfterValidator(_is_fraction),
    WithJsonSchema({"type": ["boolean", "number"], "minimum": 0, "maximum": 1}),
]
"""A boolean, or a number from 0 to 1."""


class GCPOptions(RemoteOptions):
    """Options of a target with ``provider: gcp``."""

    region: Argument | None = Field(
        default=None,
        description="Region, such as us-central1. Default: that of `zone`, or of the variable "
        "GOOGLE_CLOUD_REGION.",
    )
    zone: Argument | None = Field(
        default=None,
        description="Zone, such as us-central1-a. Default: any zone of the region with capacity.",
    )
    project_id: Argument | None = Field(
        default=None, description="Project that is charged. Default: that of your credentials."
    )
    instance_type: Argument | None = Field(
        default=None,
        description="Machine type, such as e2-standard-4. Default: the cheapest that fits.",
    )
    instance_types: tuple[Argument, ...] = Field(
        default=(), description="Machine types, in the order in which they are requested."
    )
    preemptible: Fraction = Field(
        default=False,
        description="Use spot machines for all workers (true) or a fraction such as 0.7. Without "
        "spot capacity, workers run on demand.",
    )
    network: Argument = Field(
        default="default",
        description="Network of all machines: its name, or projects/.../global/networks/...",
    )
    subnetwork: Argument | None = Field(
        default=None, description="Subnetwork. Default: the network's subnetwork in the region."
    )
    network_tags: tuple[Argument, ...] = Field(
        default=(), description="Network tags of all machines, for your own firewall rules."
    )
    external_ip: bool = Field(
        default=True,
        description="Give machines an address outside the network. Without one, clients must be in "
        "the network, and images are pulled through Private Google Access or Cloud NAT.",
    )
    clients_from: tuple[AddressRange, ...] = Field(
        default=("0.0.0.0/0",),
        description="Addresses from which clients can reach the scheduler, such as 203.0.113.0/24. "
        "Connections use TLS with the cluster's own certificates.",
    )
    service_account: Argument | None = Field(
        default=None,
        description="E-mail address of the machines' service account. Default: the project's "
        "default account.",
    )
    manager_service_account: Argument | None = Field(
        default=None,
        description="E-mail address of the service account for managers' machines, which start and "
        "stop other machines. Default: `service_account`.",
    )
    machine_image: Argument = Field(
        default="projects/cos-cloud/global/images/family/cos-stable",
        description="Container-Optimized OS image of the boot disks.",
    )
    disk: Memory = Field(
        default="30GB", description="Size of a boot disk. It must hold the container image."
    )
    disk_type: Argument = Field(default="pd-balanced", description="Type of the boot disks.")
