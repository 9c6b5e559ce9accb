"""The options of a target, as the parts of the provider read them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.providers.aws.names import ECS_CLUSTER
from scalable.providers.aws.network import Wish
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

    @property
    def passed_roles(self) -> tuple[str, ...]:
        """Roles of the manifest that a manager gives to the machines that it starts."""
        roles = (self.execution_role, self.task_role, self.manager_role)
        return tuple(dict.fromkeys(role for role in roles if role))


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the settings that the options of a target name."""
    types = tuple(options["instance_types"])
    if options["instance_type"]:
        types = (options["instance_type"], *types)
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
        instance_types=tuple(dict.fromkeys(types)),
        ami=options["ami"],
        disk_gib=None if disk is None else -(-parse_bytes(disk) // 2**30),
        spot_allocation=options["spot_allocation"],
        logs_kept_days=options["logs_kept_days"],
    )
