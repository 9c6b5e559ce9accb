"""Network interfaces and ports of this machine."""

from __future__ import annotations

import socket

import psutil

from scalable.errors import ProviderError

PORTS_TRIED = 200


def address_of(interface: str) -> str:
    """Return an interface's IPv4 address, or raise ProviderError with a list of the interfaces."""
    addresses: dict[str, str] = {}
    for name, found in psutil.net_if_addrs().items():
        for address in found:
            if address.family == socket.AF_INET:
                addresses.setdefault(name, address.address)  # Dask takes the first, too
    if interface not in addresses:
        known = ", ".join(f"{name} ({address})" for name, address in sorted(addresses.items()))
        raise ProviderError(
            f"there is no network interface {interface!r} with an IPv4 address here",
            hint=f"there are: {known}",
        )
    return addresses[interface]


def free_port(host: str, first: int) -> int:
    """Return the first free port from ``first`` on. Raise ProviderError if none of 200 is free."""
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ProviderError(
        f"no port of {first} to {first + PORTS_TRIED - 1} is free on {host}",
        hint="set scheduler_port",
    )
