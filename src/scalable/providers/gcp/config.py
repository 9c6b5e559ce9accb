"""The part of a target's options that machines are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.options import GCPOptions
from scalable.providers.gcp.quote import region_of
from scalable.spec.prices import Offer
from scalable.units import parse_bytes


@dataclass(frozen=True)
class Config:
    """The place of machines, and what they are made of.

    Attributes
    ----------
    region
        Region.
    zone
        Zone; empty for any of the region.
    project
        Project; empty for that of the credentials.
    instance_types
        Machine types in the order in which they are tried; empty for the cheapest that fit.
    network, subnetwork
        Names, or paths that begin with ``projects/``; an empty subnetwork is the network's own.
    network_tags
        Network tags that all machines have, beside those of their cluster.
    external_ip
        Whether machines have an address outside the network.
    clients_from
        Address ranges of clients, in CIDR notation.
    service_account, manager_service_account
        E-mails of the accounts of machines; empty for the project's default account.
    machine_image
        Image of the boot disk, as a path that begins with ``projects/``.
    disk_gb, disk_type
        Size of the boot disk in GB, and its type.
    longest_s
        Seconds after which the cloud deletes a machine, whoever has died; None for never.
    spot_share
        Share of the machines with workers that are spot machines.
    offers
        Machine types with the prices that count; empty for those of this package.
    """

    region: str
    zone: str = ""
    project: str = ""
    instance_types: tuple[str, ...] = ()
    network: str = "default"
    subnetwork: str = ""
    network_tags: tuple[str, ...] = ()
    external_ip: bool = True
    clients_from: tuple[str, ...] = ("0.0.0.0/0",)
    service_account: str = ""
    manager_service_account: str = ""
    machine_image: str = "projects/cos-cloud/global/images/family/cos-stable"
    disk_gb: int = 30
    disk_type: str = "pd-balanced"
    longest_s: float | None = None
    spot_share: float = 0.0
    offers: tuple[Offer, ...] = ()

    def account(self, manages: bool) -> str:
        """Return the e-mail of the account of a manager's machine, or of another one."""
        return (self.manager_service_account if manages else "") or self.service_account

    def place(self) -> dict[str, str]:
        """Return the place of clusters, as a record keeps it."""
        return {"project": self.project, "region": self.region}


def config_of(options: Mapping[str, Any], lifetime_s: float | None = None) -> Config:
    """Return the configuration that the options of a target describe.

    Parameters
    ----------
    options
        Options; those that are left out have their defaults.
    lifetime_s
        Seconds after which machines are deleted by the cloud; None for never.

    Raises
    ------
    ProviderError
        When no region is named.
    """
    options = GCPOptions().model_dump() | dict(options)
    region = region_of(options)
    if region is None:
        raise ProviderError(
            "no region of Google Cloud is named",
            hint="write region or zone in the target, or set GOOGLE_CLOUD_REGION",
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
