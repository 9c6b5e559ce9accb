"""Parsed options of a target, and the sites that they refer to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.model import DeploymentSpec
from scalable.model.prices import Offer
from scalable.providers.aws.names import ECS_CLUSTER
from scalable.providers.aws.shapes import offers_for, region_of, types_of
from scalable.providers.quotes import spot_share
from scalable.units import parse_bytes

# Network ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkOptions:
    """Network options of a target."""

    #: Ids of existing resources. None or empty for resources to find or create.
    vpc: str | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    #: Zones of the machines; empty for all zones.
    zones: tuple[str, ...] = ()
    public: bool = True
    #: CIDR blocks from which clients reach the scheduler.
    clients_from: tuple[str, ...] = ("0.0.0.0/0",)


# Settings -----------------------------------------------------------------------------------------

FARGATE, EC2 = "fargate", "ec2"
KINDS = (FARGATE, EC2)


@dataclass(frozen=True)
class Settings:
    """Options of a target."""

    #: Region, or None for the AWS configuration's region.
    region: str | None = None
    #: Kinds of machines: the target's, or all for a site without a target.
    kinds: tuple[str, ...] = KINDS
    network: NetworkOptions = field(default_factory=NetworkOptions)
    ecs_cluster: str = ECS_CLUSTER
    #: ARNs of the roles in the manifest.
    execution_role: str | None = None
    task_role: str | None = None
    manager_role: str | None = None
    #: Instance types in the order in which they are tried; empty for the cheapest.
    instance_types: tuple[str, ...] = ()
    ami: str | None = None
    disk_gib: int | None = None
    spot_allocation: str = "price-capacity-optimized"
    logs_kept_days: int = 14
    #: Share of spot machines among the machines with workers, from 0 to 1.
    spot_share: float = 0.0
    #: Instance types of the region with their prices.
    offers: tuple[Offer, ...] = ()

    @property
    def passed_roles(self) -> tuple[str, ...]:
        """Roles in the manifest that a manager passes to its machines."""
        roles = (self.execution_role, self.task_role, self.manager_role)
        return tuple(dict.fromkeys(role for role in roles if role))


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the settings in the options of a target."""
    disk = options["disk"]
    return Settings(
        region=options["region"],
        kinds=(options["cluster_type"],),
        network=NetworkOptions(
            vpc=options["vpc"],
            subnets=tuple(options["subnets"]),
            security_groups=tuple(options["security_groups"]),
            zones=tuple(options["zones"]),
            public=options["public"],
            clients_from=tuple(options["clients_from"]),
        ),
        ecs_cluster=options["ecs_cluster"],
        execution_role=options["execution_role_arn"],
        task_role=options["task_role_arn"],
        manager_role=options["manager_role_arn"],
        instance_types=types_of(options),
        ami=options["ami"],
        disk_gib=None if disk is None else -(-parse_bytes(disk) // 2**30),
        spot_allocation=options["spot_allocation"],
        logs_kept_days=options["logs_kept_days"],
        spot_share=spot_share(options["spot"]),
    )


def settings_at(place: Mapping[str, str], spec: DeploymentSpec | None) -> Settings:
    """Return a target's settings at a site. Without a target, they contain the site alone."""
    own = Settings() if spec is None else settings_of(spec.options)
    if place:
        own = dataclasses.replace(
            own, region=place["region"], ecs_cluster=place.get("ecs_cluster") or ECS_CLUSTER
        )
    if spec is not None and EC2 in own.kinds:
        region = own.region or region_of(spec.options)
        own = dataclasses.replace(own, offers=tuple(offers_for(region, spec)))
    return own


# Sites --------------------------------------------------------------------------------------------

#: Environment variables that only users with credentials have.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}


def place_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the site in a target's options. Raises ProviderError without a region."""
    region = region_of(options)
    if region is None:
        raise ProviderError("no AWS region is set", hint="set region of the target, or AWS_REGION")
    return {"region": region, "ecs_cluster": str(options["ecs_cluster"])}


def known_places() -> list[dict[str, str]]:
    """Return the environment's site, or an empty list without a region or credentials."""
    region = region_of({})
    return [{"region": region, "ecs_cluster": ECS_CLUSTER}] if region and has_credentials() else []


def has_credentials() -> bool:
    """Return whether the environment or files contain credentials, without validating them."""
    if any(os.environ.get(name) for name in _CREDENTIALS):
        return True
    for variable, name in _FILES.items():
        given = os.environ.get(variable)
        path = Path(given) if given else Path.home() / ".aws" / name
        if path.is_file() and path.stat().st_size:
            return True
    return False
