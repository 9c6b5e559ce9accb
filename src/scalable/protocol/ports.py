"""Ports of servers that take the next free one if theirs is taken."""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any

from distributed.comm.addressing import (
    parse_address,
    parse_host_port,
    unparse_address,
    unparse_host_port,
)
from distributed.core import Server

logger = logging.getLogger("scalable.protocol")

LARGEST_PORT = 65535


class NextFreePort(Server):
    """Dask server that listens on the first free of ``ports_tried`` ports, without a race."""

    def __init__(self, *args: Any, ports_tried: int = 1, **kwargs: Any) -> None:
        self._ports_tried = ports_tried
        super().__init__(*args, **kwargs)

    async def listen(self, port_or_addr: Any = None, *args: Any, **kwargs: Any) -> None:
        addresses = _following(port_or_addr, self._ports_tried)
        for address in addresses[:-1]:
            # Checked first, because a failing server leaves its sockets to the garbage collector.
            if _is_taken(address):
                logger.debug("%s is taken", address)
                continue
            try:
                await super().listen(address, *args, **kwargs)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                logger.debug("%s was taken meanwhile", address)
            else:
                return
        await super().listen(addresses[-1], *args, **kwargs)


def _is_taken(address: str) -> bool:
    host, port = parse_host_port(parse_address(address)[1])
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
                probe.listen()
        except OSError as error:
            # The server judges other errors, such as those of a machine without IPv6.
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def _following(address: Any, count: int) -> list[Any]:
    """Return an address, and the same with each of the following ports."""
    if not isinstance(address, str):
        return [address]
    scheme, location = parse_address(address)
    if scheme not in ("tcp", "tls"):
        return [address]
    host, port = parse_host_port(location, 0)
    if not port:
        return [address]
    ports = range(port, min(port + count, LARGEST_PORT + 1))
    return [unparse_address(scheme, unparse_host_port(host, number)) for number in ports]
