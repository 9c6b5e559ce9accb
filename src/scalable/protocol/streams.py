"""Byte streams that outlive their connections (*carriers*), between near and far (scheduler)."""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

#: Port of a remote scheduler's machine for tunnels. It is on loopback: only the machine or pod
#: itself, and anyone who forwards a port of it, can reach it.
RELAY_PORT = 8788
#: Maximum bytes that one end has sent and the other has not delivered.
WINDOW = 8 * 2**20
#: Seconds after which a stream without a carrier is abandoned.
KEPT_S = 120.0
#: Maximum data bytes of one send.
TAKEN = 2**20
ID_LENGTH = 16

_MAGIC = b"scs1"
_HELLO = struct.Struct(f">4sB{ID_LENGTH}sQQ")
_ANSWER = struct.Struct(">BQQI")
HELLO_LENGTH, ANSWER_LENGTH = _HELLO.size, _ANSWER.size

_DATA, _ACK, _FIN, _RESET, _ALIVE, _GOODBYE = range(1, 7)
_DATA_HEADER, _ACK_FRAME = struct.Struct(">BI"), struct.Struct(">BQQ")
_LENGTHS = {_DATA: _DATA_HEADER.size, _ACK: _ACK_FRAME.size}
_LENGTHS |= dict.fromkeys((_FIN, _RESET, _ALIVE, _GOODBYE), 1)

Buffer = bytes | memoryview


class StreamError(Exception):
    """Raised if the other end violates the protocol."""


class StreamRefusal(enum.IntEnum):
    """Reason why the far end does not open or continue a stream."""

    NONE = 0
    UNKNOWN = 1
    FULL = 2
    NO_TARGET = 3

    @property
    def words(self) -> str:
        return {
            StreamRefusal.NONE: "",
            StreamRefusal.UNKNOWN: "the stream was given up there, or the scheduler is new",
            StreamRefusal.FULL: "too many streams are open there",
            StreamRefusal.NO_TARGET: "the scheduler does not listen",
        }[self]


@dataclass(frozen=True)
class Hello:
    """First bytes that the near end sends on a carrier."""

    stream: bytes
    #: True if the far end has never answered for this stream, and may open it.
    fresh: bool
    #: Bytes of the stream that the near end has received.
    received: int
    #: Position in the stream up to which the far end may send.
    limit: int

    def encoded(self) -> bytes:
        return _HELLO.pack(_MAGIC, self.fresh, self.stream, self.received, self.limit)

    @classmethod
    def decoded(cls, data: bytes) -> Hello:
        """Decode ``HELLO_LENGTH`` bytes. Raises StreamError for another protocol version."""
        magic, fresh, stream, received, limit = _HELLO.unpack(data)
        if magic != _MAGIC or fresh not in (0, 1):
            raise StreamError(
                "invalid first message of a stream: the other end may use another version of "
                "scalable"
            )
        return cls(stream, bool(fresh), received, limit)


@dataclass(frozen=True)
class Answer:
    """First bytes that the far end sends on a carrier."""

    refusal: StreamRefusal
    #: Bytes of the stream that the far end has received. ``limit`` is as in :class:`Hello`.
    received: int = 0
    limit: int = 0
    #: Seconds for which the far end keeps a stream without a carrier.
    kept_s: int = 0

    def encoded(self) -> bytes:
        return _ANSWER.pack(self.refusal, self.received, self.limit, self.kept_s)

    @classmethod
    def decoded(cls, data: bytes) -> Answer:
        """Decode ``ANSWER_LENGTH`` bytes. Raises StreamError for another protocol version."""
        refusal, *numbers = _ANSWER.unpack(data)
        try:
            return cls(StreamRefusal(refusal), *numbers)
        except ValueError as error:
            raise StreamError(
                "invalid answer of a stream: the other end may use another version of scalable"
            ) from error


def new_stream_id() -> bytes:
    """Return a random, unguessable stream id."""
    return secrets.token_bytes(ID_LENGTH)


class Stream:
    """One end of a stream, which uses one carrier at a time.
    Each end keeps the bytes that the other has not confirmed. On the next carrier the near end's
    *hello* and the far end's *answer* contain the received counts, so that each byte arrives once
    and in order. Each end may send up to the other's limit. The end counts as one more byte. Before
    the far end forgets a stream, it sends a goodbye. It refuses a near end that missed it with
    ``UNKNOWN``. The 128 random bits of the id are a secret: anyone with them may continue the
    stream. ``window`` limits the bytes kept in each direction. ``over`` is set by the goodbye, and
    after a reset.
    """

    def __init__(self, window: int = WINDOW, *, far: bool = False) -> None:
        self.written = self.confirmed = self.received = 0
        self.ended_here = self.ended_there = self.was_reset = self.over = False
        self._far = far
        self._window = window
        self._unsent: deque[Buffer] = deque()
        self._unconfirmed: deque[Buffer] = deque()
        # Offset of the first byte in _unconfirmed, or in _unsent if that is empty.
        self._kept_from = 0
        self._sent = self._sent_ever = 0
        self._limit = 0
        self._end_sent = self._end_confirmed = False
        self._resets = self._reset_sent = False
        self._delivered = 0
        self._told = (0, window)
        self._header = bytearray()
        self._data_left = 0

    # Bytes to the other end -----------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of bytes that may be written now, negative beyond the limit."""
        return self._window - (self.written - self.confirmed)

    def write(self, data: Buffer) -> None:
        assert not self.ended_here
        if data and not self.was_reset:
            self.written += len(data)
            self._unsent.append(data)

    def end(self) -> None:
        """Announce the end of the data to the other end."""
        self.ended_here = True

    def reset(self) -> None:
        """Abort the stream at both ends."""
        if not self.was_reset:
            self._forget()
            self._resets = True

    @property
    def _done(self) -> bool:
        """True if everything is sent, confirmed and received."""
        complete = self.ended_there and self._end_confirmed
        return complete and self._told[0] == self._position

    # Carriers -------------------------------------------------------------------------------------

    def greeting(self) -> tuple[int, int]:
        """Return the received bytes and the other end's limit, for a hello or an answer."""
        self._told = (self._position, self._delivered + self._window)
        return self._told

    def attach(self, received: int, limit: int) -> None:
        """Continue on a new carrier, given the received bytes and the limit of the other end.
        Raises StreamError if the other end's counts contradict the sent and confirmed bytes.
        """
        end = self.written + 1 if self._end_sent else self._sent_ever
        if not self.confirmed <= received <= end:
            raise StreamError(
                f"the other end has received {received} bytes instead of {self.confirmed} to {end}"
            )
        self._unsent.extendleft(reversed(self._unconfirmed))
        self._unconfirmed.clear()
        self._header.clear()
        self._data_left = 0
        self._reset_sent = False
        self._confirm(received)
        self._end_sent = self._end_confirmed
        surplus = self.confirmed - self._kept_from
        while surplus > 0:
            chunk = self._unsent.popleft()
            if len(chunk) > surplus:
                self._unsent.appendleft(memoryview(chunk)[surplus:])
            surplus -= len(chunk)
        self._kept_from = self._sent = self.confirmed
        self._limit = max(self._limit, limit)

    def take(self, *, idle: bool = False) -> list[Buffer]:
        """Return the pieces to send on the carrier now. If ``idle``, there is at least one."""
        if self.was_reset:
            return self._last(idle=idle)
        frames: list[Buffer] = []
        left = min(TAKEN, self._limit - self._sent)
        while self._unsent and left > 0:
            chunk = self._unsent.popleft()
            if len(chunk) > left:
                whole = memoryview(chunk)
                chunk = whole[:left]
                self._unsent.appendleft(whole[left:])
            frames += (_DATA_HEADER.pack(_DATA, len(chunk)), chunk)
            self._unconfirmed.append(chunk)
            self._sent += len(chunk)
            left -= len(chunk)
        self._sent_ever = max(self._sent_ever, self._sent)
        if self.ended_here and not self._unsent and not self._end_sent:
            frames.append(bytes((_FIN,)))
            self._end_sent = True
        if frames or idle or self.owes_confirmation:
            before = self._told
            if self.greeting() != before:
                frames.insert(0, _ACK_FRAME.pack(_ACK, *self._told))
        if self._far and self._done:
            self.over = True
            frames.append(bytes((_GOODBYE,)))
        if idle and not frames:
            frames.append(bytes((_ALIVE,)))
        return frames

    def _last(self, *, idle: bool) -> list[Buffer]:
        """Return the remaining bytes to send for a stream that was reset."""
        kind = _ALIVE if idle else 0
        if self._resets and not self._reset_sent:
            self._reset_sent = True
            self.over = self._far
            kind = _RESET
        elif self._far and not self.over:
            self.over = True
            kind = _GOODBYE
        return [bytes((kind,))] if kind else []

    @property
    def owes_confirmation(self) -> bool:
        """True if the other end should soon receive a confirmation."""
        received, limit = self._told
        least = self._window // 16
        more = max(self._position - received, self._delivered + self._window - limit)
        return more >= least or (self.ended_there and self._position != received)

    # Bytes from the other end ---------------------------------------------------------------------

    def feed(self, data: Buffer) -> list[memoryview]:
        """Process received bytes and return the stream's data. Raises StreamError if invalid."""
        view, pieces = memoryview(data), []
        while view:
            if self._data_left:
                piece, view = view[: self._data_left], view[self._data_left :]
                self._data_left -= len(piece)
                self.received += len(piece)
                if self.received > self._told[1] or self.ended_there:
                    raise StreamError("the other end has sent more data than allowed")
                if not self.was_reset:
                    pieces.append(piece)
                continue
            length = _LENGTHS.get(self._header[0] if self._header else view[0])
            if length is None:
                raise StreamError("the other end has sent an invalid frame")
            missing = length - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == length:
                self._framed(bytes(self._header))
                self._header.clear()
        return pieces

    def delivered(self, count: int) -> None:
        """Record that received bytes were passed on, so that there is room for more."""
        self._delivered += count

    def _framed(self, frame: bytes) -> None:
        kind = frame[0]
        if kind == _DATA:
            self._data_left = _DATA_HEADER.unpack(frame)[1]
        elif kind == _ACK:
            _, received, limit = _ACK_FRAME.unpack(frame)
            if received > (self.written + 1 if self._end_sent else self._sent):
                raise StreamError("the other end confirms data that was not sent")
            if not self.was_reset:
                self._confirm(received)
                self._limit = max(self._limit, limit)
        elif kind == _FIN:
            self.ended_there = True
        elif kind == _RESET:
            self._forget()
            self.over = self.over or not self._far
        elif kind == _GOODBYE:
            if self._far or not (self.was_reset or self._done):
                raise StreamError("the other end closes the stream too early")
            self.over = True

    def _confirm(self, received: int) -> None:
        if self._end_sent and received == self.written + 1:
            self._end_confirmed = True
        self.confirmed = max(self.confirmed, min(received, self.written))
        chunks = self._unconfirmed
        while chunks and self._kept_from + len(chunks[0]) <= self.confirmed:
            self._kept_from += len(chunks.popleft())

    @property
    def _position(self) -> int:
        return self.received + self.ended_there

    def _forget(self) -> None:
        self.was_reset = True
        self._unsent.clear()
        self._unconfirmed.clear()


# Stream ends --------------------------------------------------------------------------------------

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
        """Return the available bytes, at least one. Empty at the end of the connection."""

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
        """Close the socket. Pending operations raise OSError or return the end of the data."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._uses:
            self._socket.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the socket's descriptor open while the event loop waits for it."""
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
    """Join small pieces of bytes to save system calls."""
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
    """Return ``count`` bytes and any bytes after them. Raises ConnectionError for fewer."""
    data = b""
    while len(data) < count:
        more = await carrier.receive()
        if not more:
            raise ConnectionError("the connection was closed before the other end answered")
        data += more
    return data[:count], data[count:]


def without_delay(connection: socket.socket) -> socket.socket:
    """Set TCP_NODELAY, so that small messages are sent at once, and return the socket."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class StreamEnd:
    """One end of a stream, between successive carriers and a socket that :meth:`run` closes."""

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
            logger.debug("a local connection broke: %s", error)
            self.reset()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._socket.close()

    def close_socket(self) -> None:
        """Close the socket, even if :meth:`run` was cancelled before it started."""
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
        """Wait for space in the stream, or ``TRICKLE_S`` seconds without a carrier."""
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
                raise ConnectionResetError("the other end has aborted the stream")
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
        """Use an attached carrier until it breaks. Return the reason, or None at the stream's end.
        ``silent_s`` seconds of silence break it. Raises StreamError for protocol violations.
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
    """Raise TimeoutError after ``rounds`` silent seconds, not counting time while suspended."""
    silent = 0
    while silent < rounds:
        await asyncio.sleep(1.0)
        silent = 0 if heard.is_set() else silent + 1
        heard.clear()
    raise TimeoutError(f"no data came from the other end for {rounds} s")


# Listening servers --------------------------------------------------------------------------------


async def listens(address: str, timeout_s: float) -> bool:
    """Return whether a server listens at an address. False only if connections are refused."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
        )
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
