"""Addresses on which the processes of a cluster listen. Pure."""

from __future__ import annotations

#: Host on which everything listens unless it is asked to listen elsewhere.
LOOPBACK = "127.0.0.1"


def with_host(address: str) -> str:
    """Return an address such as ``:8787`` with the loopback host in front of its port."""
    return f"{LOOPBACK}{address}" if address.startswith(":") else address
