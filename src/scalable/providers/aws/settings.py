"""The options of a target, as the parts of the provider read them, and the places they name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.names import ECS_CLUSTER
from scalable.providers.aws.quote import region_of, types_of
from scalable.providers.aws.shapes import offers_for
from scalable.providers.aws.wish import Wish
from scalable.providers.quotes import spot_share
from scalable.spec import DeploymentSpec
from scalable.spec.prices import Offer
from scalable.units import parse_bytes

FARGATE, EC2 = "fargate", "ec2"
KINDS = (FARGATE, EC2)


@dataclass(frozen=True)
class Settings:
    """Options of a target.

    Attributes
    ----------
    region
        Region; None for that of the AWS configuration.
    kinds
        Kinds of machines: the target's, or all for whoever looks at a place without a target.
    network
        Options of the network.
    ecs_cluster
        ECS cluster of the tasks.
    execution_role, task_role, manager_role
        ARNs of the manifest's roles, or None.
    instance_types
        Types of machines, in the order in which they are tried; empty for the cheapest.
    ami
        Machine image, or None.
    disk_gib
        Disk space of a machine, or None.
    spot_allocation
        Choice among spot offers.
    logs_kept_days
        Days for which output is kept.
    spot_share
        Share of the machines with workers that are spot machines.
    offers
        Instance types of the region with their prices.
    """

    region: str | None = None
    kinds: tuple[str, ...] = KINDS
    network: Wish = field(default_factory=Wish)
    ecs_cluster: str = ECS_CLUSTER
    execution_role: str | None = None
    task_role: str | None = None
    manager_role: str | None = None
    instance_types: tuple[str, ...] = ()
    ami: str | None = None
    disk_gib: int | None = None
    spot_allocation: str = "price-capacity-optimized"
    logs_kept_days: int = 14
    spot_share: float = 0.0
    offers: tuple[Offer, ...] = ()

    @property
    def passed_roles(self) -> tuple[str, ...]:
        """Roles of the manifest that a manager gives to the machines that it starts."""
        roles = (self.execution_role, self.task_role, self.manager_role)
        return tuple(dict.fromkeys(role for role in roles if role))


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the settings that the options of a target name."""
    disk = options["disk"]
    return Settings(
        region=options["region"],
        kinds=(options["cluster_type"],),
        network=Wish(
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
    """Return the settings of a target, or without one those of a place."""
    own = Settings() if spec is None else settings_of(spec.options)
    if place:
        own = dataclasses.replace(
            own, region=place["region"], ecs_cluster=place.get("ecs_cluster") or ECS_CLUSTER
        )
    if spec is not None and EC2 in own.kinds:
        region = own.region or region_of(spec.options)
        own = dataclasses.replace(own, offers=tuple(offers_for(region, spec)))
    return own


# Places -------------------------------------------------------------------------------------------

#: Variables that only a user with credentials has.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}


def place_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the place that the options of a target name.

    Raises
    ------
    ProviderError
        When no region is known.
    """
    region = region_of(options)
    if region is None:
        raise ProviderError(
            "no region of AWS is known", hint="write the target's region, or set AWS_REGION"
        )
    return {"region": region, "ecs_cluster": str(options["ecs_cluster"])}


def known_places() -> list[dict[str, str]]:
    """Return the place of the environment; empty without a region or credentials."""
    region = region_of({})
    return [{"region": region, "ecs_cluster": ECS_CLUSTER}] if region and has_credentials() else []


def has_credentials() -> bool:
    """Return whether this user has credentials, as far as files and variables tell."""
    if any(os.environ.get(name) for name in _CREDENTIALS):
        return True
    for variable, name in _FILES.items():
        given = os.environ.get(variable)
        path = Path(given) if given else Path.home() / ".aws" / name
        if path.is_file() and path.stat().st_size:
            return True
    return False
