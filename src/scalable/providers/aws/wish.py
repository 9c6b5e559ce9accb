"""The network that the options of a target ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """The part of a target's options that concerns the network.

    Attributes
    ----------
    vpc, subnets, security_groups
        Ids; None or empty for those that are found or created.
    zones
        Zones of the machines; empty for all.
    public
        Whether machines have public addresses.
    clients_from
        Addresses, as CIDR blocks, from which clients reach the scheduler.
    """

    vpc: str | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    public: bool = True
    clients_from: tuple[str, ...] = ("0.0.0.0/0",)
