"""The two ends of a resumable stream, each between a local socket and its carriers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from scalable.protocol.streams import Buffer, Stream

logger = logging.getLogger("scalable.protocol")

#: Idle seconds after which a keep-alive frame is sent.
ALIVE_S = 2.0
#: Seconds without a byte from the peer after which a carrier counts as broken: for the near end,
#: which replaces it, and for the far end, which only waits.
SILENT_S, FAR_SILENT_S = 8, 30
#: Bytes read from a socket at once.
READ = 2**18
#: Seconds between reads of a socket while its stream is full and has no carrier. Each read opens
#: the TCP window once. Otherwise the writer's kernel would abort a connection that is not read for
#: long (Dask sets TCP_USER_TIMEOUT to 30 s).
TRICKLE_S = 3.0


class Carrier(Protocol):
    """A connection to the peer. Its methods raise OSError when it breaks."""

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes, given in pieces."""

    async def receive(self) -> Buffer:
        """Return the available bytes, at least one, empty at the end of the connection."""

    async def close(self) -> None:
        """Close the connection. Idempotent."""


class SocketCarrier:
    """A carrier over a connected, non-blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = without_delay(connection)
        self._loop = asyncio.get_running_loop()
        self._uses = 0
        self._closed = False

    async def send(self, pieces: Sequence[Buffer]) -> None:
        for part in _joined(pieces):
            with self._in_use():
                await self._loop.sock_sendall(self._socket, part)

    async def receive(self) -> Buffer:
        with self._in_use():
            return await self._loop.sock_recv(self._socket, READ)

    async def close(self) -> None:
        """Close the socket. Pending uses raise OSError or return the end of the connection."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._uses:
            self._socket.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the socket's descriptor while the event loop waits for it."""
        if self._closed:
            raise ConnectionError("the connection is closed")
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            if self._closed and not self._uses:
                self._socket.close()


def _joined(pieces: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes with small pieces joined, for few system calls."""
    joined: list[Buffer] = []
    small = bytearray()
    for piece in pieces:
        if len(piece) >= READ // 4:
            joined += (bytes(small), piece)
            small.clear()
        else:
            small += piece
    joined.append(bytes(small))
    return [part for part in joined if part]


async def receive_exactly(carrier: Carrier, count: int) -> tuple[bytes, Buffer]:
    """Return the first ``count`` bytes, and any after them. Raises ConnectionError if too few."""
    data = b""
    while len(data) < count:
        more = await carrier.receive()
        if not more:
            raise ConnectionError("the connection ended before the other end has answered")
        data += more
    return data[:count], data[count:]


def without_delay(connection: socket.socket) -> socket.socket:
    """Set TCP_NODELAY, so that small messages are sent at once, and return the socket."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class StreamEnd:
    """One end of a stream, between a socket and successive carriers.

    :meth:`run` moves bytes between the socket and the stream's buffers, and :meth:`carry` between
    the buffers and a carrier. :meth:`run` closes the connected, non-blocking socket.
    """

    def __init__(self, stream: Stream, connection: socket.socket) -> None:
        self.stream = stream
        self._socket = without_delay(connection)
        self._loop = asyncio.get_running_loop()
        self._received: deque[memoryview] = deque()
        self._has_received = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_to_send = asyncio.Event()
        self._carried = False

    # The socket -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the socket until it is closed in both directions or broken."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            await asyncio.gather(*tasks)
        except OSError as error:
            logger.debug("a local connection is broken: %s", error)
            self.reset()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close()

    def close_socket(self) -> None:
        """Close the socket, including if :meth:`run` was cancelled before it started."""
        self._socket.close()

    def reset(self) -> None:
        self.stream.reset()
        self._wake()

    def _wake(self) -> None:
        self._has_to_send.set()
        self._has_room.set()
        self._has_received.set()

    async def _read(self) -> None:
        stream = self.stream
        while not stream.was_reset:
            if stream.room <= 0:
                await self._room()
            data = await self._loop.sock_recv(self._socket, READ)
            if not data:
                break
            stream.write(data)
            self._has_to_send.set()
        stream.end()
        self._wake()

    async def _room(self) -> None:
        """Wait for space in the stream, without a carrier at most ``TRICKLE_S``."""
        while self.stream.room <= 0 and not self.stream.was_reset:
            self._has_room.clear()
            try:
                async with asyncio.timeout(TRICKLE_S):
                    await self._has_room.wait()
            except TimeoutError:
                if not self._carried:
                    return

    async def _write(self) -> None:
        stream, shut = self.stream, False
        while True:
            while self._received:
                piece = self._received.popleft()
                await self._loop.sock_sendall(self._socket, piece)
                stream.delivered(len(piece))
                if stream.owes_confirmation:
                    self._has_to_send.set()
            if stream.was_reset:
                raise ConnectionResetError("the other end has broken the stream off")
            if stream.ended_there and not shut:
                shut = True
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            if shut and stream.ended_here:
                return
            self._has_received.clear()
            await self._has_received.wait()

    # The carrier ----------------------------------------------------------------------------------

    async def carry(
        self, carrier: Carrier, first: Buffer = b"", *, silent_s: int | None = None
    ) -> str | None:
        """Use an attached carrier until it breaks, and return the reason, or None after the stream.

        ``first`` contains bytes that were received already. ``silent_s`` is the time after which a
        silent carrier counts as broken, by default the near end's. Raises StreamError if the peer
        violates the protocol.
        """
        self._carried = True
        heard = asyncio.Event()
        self._take_in(first)
        tasks = [
            asyncio.create_task(part)
            for part in (
                self._send(carrier),
                self._receive(carrier, heard),
                _watch(heard, silent_s or SILENT_S),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._carried = False
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        if self.stream.over:
            return None
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(
                end, (OSError, asyncio.CancelledError)
            ):
                raise end
        errors = [end for end in ends if isinstance(end, OSError)]
        return str(errors[0] or type(errors[0]).__name__) if errors else "it was closed"

    async def _send(self, carrier: Carrier) -> None:
        stream, event = self.stream, self._has_to_send
        while not stream.over:
            event.clear()
            pieces = stream.take()
            if not pieces:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        await event.wait()
                except TimeoutError:
                    pieces = stream.take(idle=True)
            if pieces:
                await carrier.send(pieces)

    async def _receive(self, carrier: Carrier, heard: asyncio.Event) -> None:
        while not self.stream.over and (data := await carrier.receive()):
            heard.set()
            self._take_in(data)

    def _take_in(self, data: Buffer) -> None:
        stream = self.stream
        if pieces := stream.feed(data):
            self._received.extend(pieces)
        if pieces or stream.ended_there or stream.was_reset:
            self._has_received.set()
        if stream.room > 0:
            self._has_room.set()
        # A confirmation may permit more bytes too.
        self._has_to_send.set()


async def _watch(heard: asyncio.Event, rounds: int) -> None:
    """Raise TimeoutError after ``rounds`` silent seconds, without those while suspended."""
    silent = 0
    while silent < rounds:
        await asyncio.sleep(1.0)
        silent = 0 if heard.is_set() else silent + 1
        heard.clear()
    raise TimeoutError(f"nothing was heard from the other end for {rounds} s")
