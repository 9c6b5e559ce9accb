"""Carriers of a tunnel to a port of a pod, like ``kubectl port-forward`` without kubectl.

Each carrier is a WebSocket to ``pods/portforward`` with the channel protocol of kubelets since
Kubernetes 1.7. API servers that offer SPDY through a WebSocket, as newer kubectl uses it, still
accept the channels.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from scalable.client.tunnel import BackgroundTunnel, Tunnel, TunnelClosedError
from scalable.errors import ProviderError
from scalable.manager.launcher import UnitState
from scalable.protocol.streams import KEPT_S, Buffer
from scalable.providers.kubernetes.api import (
    NOT_FOUND,
    KubernetesApi,
    KubernetesError,
    Resource,
    refusal,
)
from scalable.providers.kubernetes.reasons import observation

logger = logging.getLogger("scalable.providers.kubernetes")

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
#: Seconds for closing a WebSocket, because a lost network does not answer.
CLOSE_S = 0.5
_DATA_CHANNEL = bytes((DATA,))
#: Number of bytes at the start of each channel that contain the port.
_PORT_LENGTH = struct.calcsize("<H")


class WebSocketCarrier:
    """A carrier of a stream through the API server, over aiohttp's WebSocket."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun: set[int] = set()

    async def send(self, pieces: Sequence[Buffer]) -> None:
        import aiohttp

        try:
            await self._connection.send_bytes(b"".join((_DATA_CHANNEL, *pieces)))
        except (aiohttp.ClientError, RuntimeError) as error:  # aiohttp's, of a closed connection
            raise ConnectionError(str(error)) from error

    async def receive(self) -> Buffer:
        """Return the next bytes, or none when the connection is closed."""
        import aiohttp

        while True:
            message = await self._connection.receive()
            if message.type is aiohttp.WSMsgType.ERROR:
                raise ConnectionError(str(message.data))
            if message.type is not aiohttp.WSMsgType.BINARY:
                if self._connection.closed:
                    return b""
                continue
            data = memoryview(message.data)
            if not data:
                continue
            channel, data = data[0], data[1:]
            if channel not in self._begun:
                self._begun.add(channel)
                data = data[_PORT_LENGTH:]
            if channel == ERROR and data:
                words = bytes(data).decode(errors="replace").strip()
                refused = "refused" in words.lower()
                raise (ConnectionRefusedError if refused else ConnectionError)(words)
            if channel == DATA and data:
                return data

    async def close(self) -> None:
        """Close the WebSocket, without waiting long for the API server's answer."""
        import aiohttp

        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._connection.close()


class PodDial:
    """Opens carriers to a port of a pod."""

    def __init__(self, api: KubernetesApi, namespace: str, pod: str, port: int) -> None:
        self._api = api
        self._pods, self._pod = Resource("pods", namespace), pod
        self._path = self._pods.path(pod, "portforward")
        self._query = {"ports": str(port)}

    async def __call__(self) -> WebSocketCarrier:
        """Open a carrier.
        Raises OSError or ProviderError if the API server does not answer or refuses, and
        TunnelClosedError if the pod has ended or is gone.
        """
        import aiohttp

        try:
            connection = await self._api.websocket(self._path, self._query, PROTOCOL)
        except aiohttp.WSServerHandshakeError as error:
            await self._check_pod()
            raise refusal(error.status, error.message) from error
        except (aiohttp.ClientError, ProviderError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        return WebSocketCarrier(connection)

    async def _check_pod(self) -> None:
        """Raise TunnelClosedError if the pod has ended or is gone."""
        try:
            pod = await self._api.request("GET", self._pods, self._pod)
        except KubernetesError as error:
            if error.status == NOT_FOUND:
                raise TunnelClosedError("the scheduler's pod is gone") from error
            raise
        seen = observation(pod)
        if seen.state is UnitState.ENDED:
            raise TunnelClosedError(f"the scheduler's pod has ended: {seen.reason}")


def tunnel_to(
    context: str | None, namespace: str, pod: str, port: int, *, kept_s: float = KEPT_S
) -> BackgroundTunnel:
    """Return a tunnel to a pod's relay. Without the API server it lasts for ``kept_s`` seconds."""

    def make() -> Tunnel:
        # A separate connection, which belongs to the event loop of the tunnels.
        api = KubernetesApi(context)
        return Tunnel(PodDial(api, namespace, pod, port), hang_up=api.close, kept_s=kept_s)

    return BackgroundTunnel(make)
