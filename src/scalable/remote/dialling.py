"""TCP carriers of a tunnel to the relay of a scheduler that has its own address."""

from __future__ import annotations

import asyncio
import socket

from scalable.client.tunnel import BackgroundTunnel, Tunnel
from scalable.protocol.stream_ends import SocketCarrier
from scalable.protocol.streams import KEPT_S


class TcpDial:
    """Opens carriers to a relay's port. Client and scheduler encrypt the traffic end to end."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def __call__(self) -> SocketCarrier:
        """Open a carrier, or raise OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
        except BaseException:
            connection.close()
            raise
        return SocketCarrier(connection)


async def listens(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a port accepts a connection within ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            carrier = await TcpDial(host, port)()
    except (OSError, TimeoutError):
        return False
    await carrier.close()
    return True


def tunnel_to(host: str, port: int, *, kept_s: float = KEPT_S) -> BackgroundTunnel:
    """Return a tunnel to a relay, which closes connections after ``kept_s`` seconds without it."""
    return BackgroundTunnel(lambda: Tunnel(TcpDial(host, port), kept_s=kept_s))
