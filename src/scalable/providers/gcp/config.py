"""Options of a target from which machines are created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.model.prices import Offer
from scalable.providers.gcp.options import GCPOptions
from scalable.providers.gcp.quote import region_of
from scalable.units import parse_bytes


@dataclass(frozen=True)
class Config:
    """Site and properties of machines."""

    region: str
    #: Empty for any zone of the region.
    zone: str = ""
    #: Empty for the project of the credentials.
    project: str = ""
    #: In the order in which they are tried; empty for the cheapest that fit.
    instance_types: tuple[str, ...] = ()
    #: Name, or path that starts with ``projects/``.
    network: str = "default"
    #: The same; empty for the network's own.
    subnetwork: str = ""
    #: Tags that all machines have in addition to those of their cluster.
    network_tags: tuple[str, ...] = ()
    #: Machines have a public address.
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
        """Return the e-mail of the account of a manager's or another machine."""
        return (self.manager_service_account if manages else "") or self.service_account

    def place(self) -> dict[str, str]:
        """Return the site of clusters, in the form of a record."""
        return {"project": self.project, "region": self.region}


def config_of(options: Mapping[str, Any], lifetime_s: float | None = None) -> Config:
    """Return the configuration in a target's options. Raises ProviderError without a region."""
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
