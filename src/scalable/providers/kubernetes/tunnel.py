"""A tunnel from a port of this machine to a port of a pod: `kubectl port-forward` without kubectl.

Each connection gets a WebSocket of its own, so that connections fail and are opened again one by
one, and none waits for another.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from typing import Any

from scalable.errors import ProviderError
from scalable.protocol.addresses import LOOPBACK
from scalable.providers.kubernetes.api import Api, Resource, refusal

logger = logging.getLogger("scalable.providers.kubernetes")

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
CHUNK = 2**18


class Tunnel:
    """Server on loopback whose connections end in a pod.

    Parameters
    ----------
    api
        Connection to the API server.
    namespace, pod, port
        Pod, and the port in it.

    Attributes
    ----------
    opened, refused
        Numbers of connections that were opened and that the API server refused.
    fault
        Why the last connection failed; None after one that carried data.
    """

    def __init__(self, api: Api, namespace: str, pod: str, port: int) -> None:
        self.opened = self.refused = 0
        self.fault: str | None = None
        self._answers = False
        self._api = api
        self._path = Resource("pods", namespace).path(pod, "portforward")
        self._port = port
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """Listen on a free port of loopback; return the port."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End the server and all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for line in list(self._lines):
            line.cancel()
        if self._lines:
            await asyncio.wait(self._lines)

    def cut(self) -> int:
        """End all connections, as a lost network would; return how many there were."""
        lines = list(self._lines)
        for line in lines:
            line.cancel()
        return len(lines)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # this task belongs to the connection alone
        finally:
            self._lines.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import aiohttp

        try:
            socket = await self._api.websocket(self._path, {"ports": str(self._port)}, PROTOCOL)
        except (aiohttp.ClientError, OSError, TimeoutError, ProviderError) as error:
            self._failed(_words(error))
            return
        self.opened += 1
        sending = asyncio.create_task(_send(reader, socket))
        receiving = asyncio.create_task(self._receive(socket, writer))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            with suppress(aiohttp.ClientError, OSError):
                await socket.close()

    async def _receive(self, socket: Any, writer: asyncio.StreamWriter) -> None:
        import aiohttp

        begun: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                # The first message of each channel names the port.
                begun.add(channel)
                data = data[struct.calcsize("<H") :]
            if not data:
                continue
            if channel == ERROR:
                self._failed(data.decode(errors="replace").strip())
                return
            if channel == DATA:
                self._answered()
                writer.write(data)
                await writer.drain()

    def _failed(self, words: str) -> None:
        self.refused += 1
        # Before the first answer the scheduler's program is still starting.
        if self.fault is None and self._answers:
            logger.warning("the tunnel to the scheduler is interrupted: %s", words)
        self.fault = words

    def _answered(self) -> None:
        if self.fault is not None and self._answers:
            logger.info("the tunnel to the scheduler is open again")
        self._answers, self.fault = True, None


async def _send(reader: asyncio.StreamReader, socket: Any) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(bytes((DATA,)) + data)


def _words(error: BaseException) -> str:
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 400:
        return refusal(status, str(getattr(error, "message", ""))).message
    return str(error) or type(error).__name__
