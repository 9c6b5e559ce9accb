"""The two ends of a resumable stream: between a local socket and the carriers of the stream."""

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

#: Seconds without anything else to send after which a sign of life is sent.
ALIVE_S = 2.0
#: Seconds without a byte from the other end after which a carrier counts as broken: for the near
#: end, which replaces it, and for the far end, which only waits.
SILENT_S, FAR_SILENT_S = 8, 30
#: Bytes read from a socket at once.
READ = 2**18
#: Seconds between readings of a socket while its stream has no room and no carrier. Without them
#: the writer's kernel would break off a connection whose reader has stopped for long (Dask sets
#: TCP_USER_TIMEOUT to 30 s). Each lets the window of TCP open once.
TRICKLE_S = 3.0


class Carrier(Protocol):
    """A connection to the other end; its methods raise OSError when it breaks."""

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes, given in pieces."""

    async def receive(self) -> Buffer:
        """Return the next bytes, as many as there are; empty at the end of the connection."""

    async def close(self) -> None:
        """Close the connection; it may be closed already."""


class SocketCarrier:
    """A carrier over a socket.

    Parameters
    ----------
    connection
        Connected socket, which does not block.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = without_delay(connection)
        self._loop = asyncio.get_running_loop()
        self._uses = 0
        self._closed = False

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes, given in pieces."""
        for part in _joined(pieces):
            with self._in_use():
                await self._loop.sock_sendall(self._socket, part)

    async def receive(self) -> Buffer:
        """Return the next bytes."""
        with self._in_use():
            return await self._loop.sock_recv(self._socket, READ)

    async def close(self) -> None:
        """Close the socket; what uses it ends with OSError, or the end of the connection."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._uses:
            self._socket.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the socket's number while the event loop waits for it."""
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
    """Return the first bytes from a carrier, and those that have come after them.

    Raises
    ------
    OSError
        When the connection ends before.
    """
    data = b""
    while len(data) < count:
        more = await carrier.receive()
        if not more:
            raise ConnectionError("the connection ended before the other end has answered")
        data += more
    return data[:count], data[count:]


def without_delay(connection: socket.socket) -> socket.socket:
    """Let a TCP socket send small messages at once; return it."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class StreamEnd:
    """One end of a stream, between a socket and one carrier after the other.

    :meth:`run` moves bytes between the socket and the memory of the stream, :meth:`carry` between
    that memory and a carrier.

    Parameters
    ----------
    stream
        State of this end.
    connection
        Connected socket, which does not block; it is closed at the end of :meth:`run`.

    Attributes
    ----------
    stream
        State of this end.
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
        """Serve the socket until it is closed in both directions, or broken."""
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
        """Close the socket, also if :meth:`run` was cancelled before it began."""
        self._socket.close()

    def reset(self) -> None:
        """Break the stream off."""
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
        """Wait for room in the stream; without a carrier not for long."""
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
        """Use a carrier to which the stream is attached until it breaks, or the stream is over.

        Parameters
        ----------
        carrier
            The connection to the other end.
        first
            Bytes that have come from it already.
        silent_s
            Seconds after which a silent carrier counts as broken; None for the near end's.

        Returns
        -------
        str or None
            Why the carrier broke; None if the stream is over.

        Raises
        ------
        StreamError
            When the other end does not keep to the protocol.
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
        # Also when a confirmation lets more be sent.
        self._has_to_send.set()


async def _watch(heard: asyncio.Event, rounds: int) -> None:
    """Raise TimeoutError when nothing was heard for so many rounds of a second each.

    Rounds are counted instead of seconds: a process that was stopped has not listened.
    """
    silent = 0
    while silent < rounds:
        await asyncio.sleep(1.0)
        silent = 0 if heard.is_set() else silent + 1
        heard.clear()
    raise TimeoutError(f"nothing was heard from the other end for {rounds} s")
