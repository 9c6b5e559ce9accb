"""Network options of a target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """Network options of a target."""

    #: Ids; None or empty for resources that are found or created.
    vpc: str | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    #: Zones of the machines; empty for all.
    zones: tuple[str, ...] = ()
    public: bool = True
    #: CIDR blocks from which clients reach the scheduler.
    clients_from: tuple[str, ...] = ("0.0.0.0/0",)
