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
        description="Region, such as us-central1; by default that of `zone`, or of the variable "
        "GOOGLE_CLOUD_REGION.",
    )
    zone: Argument | None = Field(
        default=None,
        description="Zone, such as us-central1-a; by default any of the region that has machines.",
    )
    project_id: Argument | None = Field(
        default=None,
        description="Project that is charged; by default that of the credentials.",
    )
    instance_type: Argument | None = Field(
        default=None,
        description="Type of machine, such as e2-standard-4; by default the cheapest that fits.",
    )
    instance_types: tuple[Argument, ...] = Field(
        default=(), description="Types of machine that are tried in this order."
    )
    preemptible: Fraction = Field(
        default=False,
        description="Use spot machines for workers: true, or the fraction of them. Where there "
        "are none, workers get machines at the full price.",
    )
    network: Argument = Field(
        default="default",
        description="Network of all machines: its name, or projects/.../global/networks/...",
    )
    subnetwork: Argument | None = Field(
        default=None, description="Subnetwork; by default the network's own one of the region."
    )
    network_tags: tuple[Argument, ...] = Field(
        default=(), description="Network tags of all machines, for firewall rules of your own."
    )
    external_ip: bool = Field(
        default=True,
        description="Give machines an address outside the network. Without one, clients have to "
        "be in the network, and images come through Private Google Access or Cloud NAT.",
    )
    clients_from: tuple[AddressRange, ...] = Field(
        default=("0.0.0.0/0",),
        description="Addresses from which clients reach the scheduler, such as 203.0.113.0/24. "
        "The connection is TLS with the cluster's own certificates.",
    )
    service_account: Argument | None = Field(
        default=None,
        description="E-mail of the service account of the machines; by default the project's "
        "default account.",
    )
    manager_service_account: Argument | None = Field(
        default=None,
        description="E-mail of the service account of a manager's machine, which starts and ends "
        "other machines; by default `service_account`.",
    )
    machine_image: Argument = Field(
        default="projects/cos-cloud/global/images/family/cos-stable",
        description="Image of the boot disks: Container-Optimized OS.",
    )
    disk: Memory = Field(
        default="30GB", description="Size of a boot disk, which holds the image of the container."
    )
    disk_type: Argument = Field(default="pd-balanced", description="Type of the boot disks.")
