"""Scheduler-side server of resumable streams, connected to the scheduler's port."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.streams import (
    FAR_SILENT_S,
    HELLO_LENGTH,
    KEPT_S,
    WINDOW,
    Answer,
    Buffer,
    Carrier,
    Hello,
    SocketCarrier,
    Stream,
    StreamEnd,
    StreamError,
    StreamRefusal,
    receive_exactly,
)

logger = logging.getLogger("scalable.scheduler")

#: Largest number of streams at a time, in all and from one address. The second limit stops a peer
#: without the cluster's certificate from using all streams.
MOST_STREAMS, MOST_FROM_ONE = 512, 128
#: Number of connections at a time that have not sent their hello.
MOST_GREETINGS = 64
#: Seconds within which a connection has to send its hello, and a new stream its first byte.
GREETING_S, FIRST_BYTE_S = 10.0, 30.0
SWEEP_S = 0.5
#: Seconds that streams may take to close, in order or aborted.
CLOSE_TIMEOUT_S = 1.0


@dataclass(eq=False)
class _Kept:
    """Stream and its carrier, the connection that transports it at present."""

    end: StreamEnd
    runs: asyncio.Task[None]
    began: float
    source: str
    carrying: asyncio.Task[str | None] | None = None
    carrier: Carrier | None = None
    #: Monotonic time at which the stream lost its carrier, or None while it has one.
    alone_since: float | None = None


class StreamRelay:
    """Server that carries streams to the scheduler in a separate thread.
    The thread sends keep-alive frames while the scheduler's event loop is busy. A client needs the
    stream's id to continue a stream. Content is encrypted between client and scheduler. By default
    only this machine or pod can connect, as port forwarding does. Streams without a connection are
    kept for ``kept_s`` seconds. ``window`` is the bytes kept per stream and direction.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        kept_s: float = KEPT_S,
        window: int = WINDOW,
    ) -> None:
        self.port = port
        self._target, self._host = target, host
        self._kept_s, self._window = kept_s, window
        self._streams: dict[bytes, _Kept] = {}
        self._opening: list[str] = []
        self._visits: set[asyncio.Task[None]] = set()
        self._runs: set[asyncio.Task[None]] = set()
        self._loop: Any = None
        self._listening: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def streams(self) -> int:
        return len(self._streams)

    def start(self) -> None:
        """Listen, and serve in a thread. Raises OSError if the port is taken."""
        self._listening = socket.create_server((self._host, self.port), backlog=128)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scalable streams", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and all streams. Streams closed by the scheduler finish in order."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(2 * CLOSE_TIMEOUT_S + 1.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = [self._loop.create_task(part) for part in (self._serve(), self._sweep())]
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            tasks = [*serving, *self._visits, *self._runs]
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            assert self._listening is not None
            self._listening.close()
            self._loop.close()

    async def _finish(self) -> None:
        if self._runs:
            await asyncio.wait(self._runs, timeout=CLOSE_TIMEOUT_S)
        for kept in self._streams.values():
            kept.end.reset()
        carrying = [kept.carrying for kept in self._streams.values() if kept.carrying is not None]
        if carrying:
            await asyncio.wait(carrying, timeout=CLOSE_TIMEOUT_S)

    async def _serve(self) -> None:
        assert self._listening is not None
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listening)
            except OSError as error:  # too many open files, for example
                logger.warning("a connection of a tunnel could not be accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            carried = sum(each.carrier is not None for each in self._streams.values())
            if len(self._visits) - carried >= MOST_GREETINGS:
                connection.close()
                continue
            visit = self._loop.create_task(self._visited(connection))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    async def _visited(self, connection: socket.socket) -> None:
        carrier = SocketCarrier(connection)
        try:
            async with asyncio.timeout(GREETING_S):
                data, more = await receive_exactly(carrier, HELLO_LENGTH)
                hello = Hello.decoded(data)
                kept = await self._stream_of(hello, connection.getpeername()[0])
                if isinstance(kept, StreamRefusal):
                    logger.debug("a stream is refused: %s", kept.words)
                    await carrier.send([Answer(kept).encoded()])
                    return
            await self._carry(kept, hello, carrier, more)
        except (OSError, StreamError) as error:
            logger.debug(
                "a connection through a tunnel was closed: %s", error or type(error).__name__
            )
        finally:
            await carrier.close()

    async def _stream_of(self, hello: Hello, source: str) -> _Kept | StreamRefusal:
        """Return or open the stream that is named in a client's first message."""
        kept = self._streams.get(hello.stream)
        if kept is not None:
            return kept
        if not hello.fresh:
            return StreamRefusal.UNKNOWN
        if self._is_full(source):
            logger.warning("a stream from %s is refused: too many are open", source)
            return StreamRefusal.FULL
        is_ipv6 = ":" in self._target[0]
        connection = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        connection.setblocking(False)
        self._opening.append(source)
        try:
            await self._loop.sock_connect(connection, self._target)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            return StreamRefusal.NO_TARGET
        finally:
            self._opening.remove(source)
        if hello.stream in self._streams:  # opened concurrently for the same near end
            connection.close()
            return self._streams[hello.stream]
        end = StreamEnd(Stream(self._window, far=True), connection)
        kept = _Kept(end, self._loop.create_task(end.run()), time.monotonic(), source)
        self._runs.add(kept.runs)
        kept.runs.add_done_callback(self._runs.discard)
        self._streams[hello.stream] = kept
        return kept

    def _is_full(self, source: str) -> bool:
        """Return whether no more streams from an address may be opened."""
        sources = [*self._opening, *(kept.source for kept in self._streams.values())]
        own = ip_address(source).is_loopback and ip_address(self._host).is_loopback
        alike = 0 if own else sources.count(source)
        return len(sources) >= MOST_STREAMS or alike >= MOST_FROM_ONE

    async def _carry(self, kept: _Kept, hello: Hello, carrier: Carrier, first: Buffer) -> None:
        """Attach a carrier to a stream, replacing any carrier that it still has."""
        before, old = kept.carrying, kept.carrier
        kept.carrier, kept.alone_since = carrier, None
        if before is not None and old is not None:
            before.cancel()
            await asyncio.wait([before])
            await old.close()
        if kept.carrier is not carrier:  # a still newer one has come
            return
        use = self._loop.create_task(self._use(kept, hello, carrier, first))
        kept.carrying = use
        try:
            await asyncio.wait([use])
            if not use.cancelled():
                logger.debug("a stream has lost its connection: %s", use.result())
        except StreamError:
            kept.end.reset()
            raise
        finally:
            use.cancel()
            if kept.carrier is carrier:
                kept.carrying = kept.carrier = None
                kept.alone_since = time.monotonic()
                if kept.end.stream.over:
                    self._streams.pop(hello.stream, None)

    async def _use(self, kept: _Kept, hello: Hello, carrier: Carrier, first: Buffer) -> str | None:
        received, limit = kept.end.stream.greeting()
        kept.end.stream.attach(hello.received, hello.limit)
        answer = Answer(StreamRefusal.NONE, received, limit, round(self._kept_s))
        await carrier.send([answer.encoded()])
        return await kept.end.carry(carrier, first, silent_s=FAR_SILENT_S)

    async def _sweep(self) -> None:
        """Drop streams that no client continues or that transfer no data."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for name, kept in list(self._streams.items()):
                alone = kept.alone_since is not None and now - kept.alone_since > self._kept_s
                mute = kept.end.stream.received == 0 and now - kept.began > FIRST_BYTE_S
                if alone or mute:
                    if alone:
                        logger.info("a tunnel was cut for %g s: its client has left", self._kept_s)
                    del self._streams[name]
                    kept.end.reset()
