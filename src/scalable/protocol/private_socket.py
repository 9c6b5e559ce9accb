"""Unix socket for requests to a scheduler in another process of the same user.

A session whose workers are threads opens no port. Its process listens on this socket, in a private
directory. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalable.errors import ClusterError, ScalableError
from scalable.protocol.handlers import Handler
from scalable.protocol.private_directory import PrivateDirectory, check_private

logger = logging.getLogger("scalable.protocol")

#: Handlers exposed on the socket: read-only ones, and those with which users scale.
SERVED = (
    Handler.STATUS,
    Handler.OVERVIEW,
    Handler.WORKERS,
    Handler.POOLS,
    Handler.EXPLAIN,
    Handler.CALL,
    Handler.PROFILE,
    Handler.LIVE_PAGE,
    Handler.SCALE,
    Handler.DRAIN,
    Handler.SET_BUDGET,
)
#: Maximum bytes of a request and of an answer.
MOST_BYTES = 2**26
#: Seconds in which a connected process must send its request.
REQUEST_S = 10.0
#: Seconds in which a connected process must read most of the answer.
TAKEN_S = 30.0
#: Maximum bytes of the directory's path. The socket's own path may have 103 on some systems.
_LONGEST_PATH = 100
_NAME = "s"


class PrivateSocket:
    """Socket that serves the handlers in :data:`SERVED` to processes of the same user."""

    def __init__(self, handlers: Mapping[str, Callable[..., Any]]) -> None:
        self._handlers = handlers
        self._directory: PrivateDirectory | None = None
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> Path:
        """Start listening, and return the path of the socket.
        Raises OSError without sockets or a directory, and ClusterError for an unsafe directory.
        """
        self._directory = _directory()
        self._loop = asyncio.get_running_loop()
        path = self._directory.path / _NAME
        try:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=MOST_BYTES)
        except OSError:
            self.close()
            raise
        path.chmod(0o600)
        return path

    def close(self) -> None:
        """Stop listening, and remove the socket. Thread-safe and idempotent."""
        server, self._server = self._server, None
        if server is not None and self._loop is not None:
            with suppress(RuntimeError):  # when the process exits, the loop is closed already
                self._loop.call_soon_threadsafe(server.close)
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _is_own_user(writer.get_extra_info("socket")):
                line = await asyncio.wait_for(reader.readline(), REQUEST_S)
                writer.write(json.dumps(await self._answer(line), default=str).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), TAKEN_S)
        except (OSError, TimeoutError, ValueError) as error:
            logger.debug("a request from another process was not answered: %r", error)
            writer.transport.abort()  # or what a suspended process does not read would stay here
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            name, arguments = request["handler"], dict(request["arguments"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            return {"error": f"not a request: {error!r}"}
        function = self._handlers.get(name) if name in SERVED else None
        if function is None:
            return {"error": f"{name!r:.80} is not served to other processes"}
        try:
            answer = function(**arguments)
            return {"answer": await answer if inspect.isawaitable(answer) else answer}
        except (ScalableError, TypeError, ValueError, KeyError) as error:
            return {"error": str(error)}
        except Exception as error:  # a defect of ours, which is reported to the caller too
            logger.exception("%s, requested by another process, has failed", name)
            return {"error": f"{name} has failed: {error!r}"}


class SocketComm:
    """A socket's handlers for :func:`.request`. Each request opens a connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getattr__(self, handler: str) -> Callable[..., Awaitable[Any]]:
        async def call(**arguments: Any) -> Any:
            check_private(self._path.parent)
            reader, writer = await asyncio.open_unix_connection(self._path, limit=MOST_BYTES)
            try:
                request = {"handler": handler, "arguments": arguments}
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
            if not line.endswith(b"\n"):
                raise ConnectionError("the session was closed before it answered")
            answer = json.loads(line)
            if "error" in answer:
                raise ClusterError(answer["error"])
            return answer["answer"]

        return call


def _directory() -> PrivateDirectory:
    """Return a directory with a path short enough for a socket."""
    directory = PrivateDirectory()
    if len(os.fsencode(directory.path)) > _LONGEST_PATH:
        directory.release()
        directory = PrivateDirectory("/tmp")  # noqa: S108 - its name cannot be foreseen
    return directory


def _is_own_user(connection: socket.socket) -> bool:
    """Return whether the peer process belongs to this user. True if that is unknown."""
    if not sys.platform.startswith("linux"):
        return True  # the directory of the socket keeps others out
    layout = "3i"
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(layout))
    _, uid, _ = struct.unpack(layout, said)
    return bool(uid == os.geteuid())
