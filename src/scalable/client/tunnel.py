"""Local ends of resumable streams: a port of this machine that leads to a remote scheduler.

A connection to the port becomes a stream (:mod:`scalable.protocol.streams`) to the relay next to
the scheduler (:mod:`scalable.scheduler.stream_relay`). If a carrier is lost, its streams pause
until another one is open.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from scalable.errors import ClusterError, ScalableError
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.streams import (
    ANSWER_LENGTH,
    KEPT_S,
    WINDOW,
    Answer,
    Buffer,
    Carrier,
    Hello,
    Stream,
    StreamEnd,
    StreamError,
    StreamRefusal,
    new_stream_id,
    receive_exactly,
)

logger = logging.getLogger("scalable.client")

_Result = TypeVar("_Result")

#: Function that opens a carrier, for example through the API server of a Kubernetes cluster. It
#: raises OSError or a ScalableError if it cannot do so now, ConnectionRefusedError if the relay
#: does not listen, and :class:`TunnelClosedError` if no later attempt can succeed.
Dial = Callable[[], Awaitable[Carrier]]

#: Seconds before the second attempt, factor between later pauses, and longest pause.
FIRST_PAUSE_S, PAUSE_FACTOR, LONGEST_PAUSE_S = 0.1, 1.5, 3.0
#: Seconds for the first attempts to open a carrier, and for later ones.
DIAL_TIMEOUTS_S = (5.0, 5.0, 10.0, 20.0)
#: Seconds without a listening relay after which a scheduler that has run is considered gone.
REFUSED_S = 15.0
#: Seconds to wait for connections that have been closed, and for the others after a reset.
CLOSED_S, CLOSE_TIMEOUT_S = 0.1, 1.0
OPEN_TIMEOUT_S = 10.0


class TunnelClosedError(ClusterError):
    """No tunnel to the scheduler can be opened any more."""


@dataclass(eq=False)
class _Line:
    """A stream of a tunnel."""

    name: bytes
    end: StreamEnd
    fresh: bool = True
    carrier: Carrier | None = None


class Tunnel:
    """Server on loopback whose connections lead to the relay of a scheduler.
    ``hang_up`` frees the resources of ``dial``. Streams without a carrier are given up after
    ``kept_s`` seconds. ``window`` is in bytes.
    """

    def __init__(
        self,
        dial: Dial,
        subject: str = "the scheduler",
        *,
        hang_up: Callable[[], Awaitable[None]] | None = None,
        kept_s: float = KEPT_S,
        window: int = WINDOW,
    ) -> None:
        #: Number of carriers that have replaced a lost one.
        self.resumed = 0
        #: Why there is no carrier, or None while there is one and before the first failed attempt.
        self.fault: str | None = None
        self._dial, self._hang_up = dial, hang_up
        self._subject = subject
        self._kept_s, self._window = kept_s, window
        self._answers = False
        self._failures = 0
        self._cut_at = self._refused_at = 0.0
        self._gone: str | None = None
        self._probing = asyncio.Lock()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._lines: dict[_Line, asyncio.Task[None]] = {}

    async def open(self) -> int:
        """Listen on a free port of loopback, and return it. No carrier is opened yet."""
        self._listening = socket.create_server((LOOPBACK, 0), backlog=128)
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listening))
        return int(self._listening.getsockname()[1])

    async def close(self) -> None:
        """Close the server and all streams. The relay is notified if it can be reached."""
        accepting = self._accepting
        self._refuse_others()
        if accepting is not None:
            await asyncio.gather(accepting, return_exceptions=True)
        # Connections that have been closed finish in order, the others are reset.
        await self._wait_for_lines(CLOSED_S)
        for line in self._lines:
            if not line.end.stream.ended_here:
                line.end.reset()
        await self._wait_for_lines(CLOSE_TIMEOUT_S)
        self._gone = self._gone or "it was closed"
        for task in (lines := list(self._lines.values())):
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        if self._hang_up is not None:
            await self._hang_up()

    async def _wait_for_lines(self, seconds: float) -> None:
        if self._lines:
            await asyncio.wait(self._lines.values(), timeout=seconds)

    def abandon(self, reason: str) -> None:
        """Reset all streams, and refuse new ones, because the scheduler is gone."""
        self._gone = self._gone or reason
        # A client can distinguish a refused connection from one that is lost during a handshake.
        self._refuse_others()
        for line, task in self._lines.items():
            line.end.reset()
            if line.carrier is None:
                task.cancel()

    def _refuse_others(self) -> None:
        accepting, self._accepting = self._accepting, None
        listening, self._listening = self._listening, None
        if accepting is not None:
            accepting.cancel()
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    # Streams --------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # too many open files, for example
                logger.warning("could not accept a connection to %s: %s", self._subject, error)
                await asyncio.sleep(1.0)
                continue
            connection.setblocking(False)
            end = StreamEnd(Stream(self._window), connection)
            line = _Line(new_stream_id(), end)
            task = loop.create_task(self._serve(line))
            self._lines[line] = task
            task.add_done_callback(partial(self._ended, line))

    def _ended(self, line: _Line, _: object) -> None:
        del self._lines[line]
        line.end.close_socket()

    async def _serve(self, line: _Line) -> None:
        running = asyncio.create_task(line.end.run())
        stream = line.end.stream
        try:
            while not stream.over:
                carrier, first = await self._reached(line)
                line.carrier = carrier
                try:
                    lost = await line.end.carry(carrier, first)
                finally:
                    line.carrier = None
                    await carrier.close()
                if lost is not None:
                    self._interrupted(lost)
            await running
        except (TunnelClosedError, StreamError) as error:
            unused = line.fresh and stream.ended_here
            ended = stream.was_reset or (stream.ended_here and stream.ended_there)
            if not unused and not ended:
                logger.warning("a connection to %s is closed: %s", self._subject, error)
        finally:
            line.end.reset()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _reached(self, line: _Line) -> tuple[Carrier, Buffer]:
        """Attach a stream to a carrier. Return the carrier and the bytes received from it."""
        try:
            async with asyncio.timeout(self._kept_s):
                while True:
                    # While no carrier works, one stream makes the attempts for all.
                    async with self._probing:
                        if self.fault is not None and (found := await self._tried(line)):
                            return found
                    if self.fault is None and (found := await self._tried(line)):
                        return found
        except TimeoutError:
            raise TunnelClosedError(
                f"the tunnel was interrupted for {self._kept_s:g} s: {self.fault}"
            ) from None

    async def _tried(self, line: _Line) -> tuple[Carrier, Buffer] | None:
        """Try once to reach the relay. On failure, wait for the next attempt and return None."""
        if self._gone is not None:
            raise TunnelClosedError(self._gone)
        if line.fresh and line.end.stream.ended_here:
            raise TunnelClosedError("it was closed before the tunnel was established")
        try:
            found = await self._attempt(line)
        except TunnelClosedError:
            raise
        except (OSError, ScalableError) as error:
            now = time.monotonic()
            refused = isinstance(error, ConnectionRefusedError)
            self._refused_at = (self._refused_at or now) if refused else 0.0
            if self._answers and refused and now - self._refused_at > REFUSED_S:
                raise TunnelClosedError(f"the scheduler has stopped: {error}") from error
            self._failures += 1
            self._interrupted(str(error) or "no answer in time")
            await asyncio.sleep(pause_s(self._failures))
            return None
        self._works()
        self.resumed += not line.fresh
        line.fresh = False
        return found

    async def _attempt(self, line: _Line) -> tuple[Carrier, Buffer]:
        stream = line.end.stream
        patience = DIAL_TIMEOUTS_S[min(self._failures, len(DIAL_TIMEOUTS_S) - 1)]
        async with asyncio.timeout(patience):
            carrier = await self._dial()
            try:
                hello = Hello(line.name, line.fresh, *stream.greeting())
                await carrier.send([hello.encoded()])
                data, first = await receive_exactly(carrier, ANSWER_LENGTH)
                answer = Answer.decoded(data)
                _accept_answer(answer)
                stream.attach(answer.received, answer.limit)
            except BaseException:
                await carrier.close()
                raise
        self._kept_s = float(answer.kept_s)
        return carrier, first

    # State ----------------------------------------------------------------------------------------

    def _interrupted(self, words: str) -> None:
        # Before the first answer the scheduler's program is still starting.
        if self.fault is None:
            self._cut_at = time.monotonic()
            if self._answers:
                logger.warning("the tunnel to %s is interrupted: %s", self._subject, words)
        self.fault = words

    def _works(self) -> None:
        if self.fault is not None and self._answers:
            spent = time.monotonic() - self._cut_at
            logger.info("the tunnel to %s is open again after %.1f s", self._subject, spent)
        self._answers, self.fault = True, None
        self._failures, self._refused_at = 0, 0.0


def _accept_answer(answer: Answer) -> None:
    if answer.refusal is StreamRefusal.NO_TARGET:
        raise ConnectionRefusedError(answer.refusal.words)
    if answer.refusal is not StreamRefusal.NONE:
        raise TunnelClosedError(answer.refusal.words)


def pause_s(failures: int) -> float:
    """Return a random pause in seconds. Its bound grows with the failures, up to 3 s."""
    bound = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * PAUSE_FACTOR ** (failures - 1))
    return bound * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


class BackgroundTunnel:
    """Tunnel served by a background thread that all tunnels of a process share."""

    def __init__(self, make: Callable[[], Tunnel]) -> None:
        self._make = make
        #: The tunnel while it is open.
        self.tunnel: Tunnel | None = None
        self._port = 0

    def open(self) -> int:
        """Listen on a free port of loopback, and return it. Idempotent."""
        if self.tunnel is None:
            self._port = in_background(self._opened(), OPEN_TIMEOUT_S)
        return self._port

    async def _opened(self) -> int:
        self.tunnel = self._make()
        return await self.tunnel.open()

    def close(self) -> None:
        """Close the tunnel after forwarding the pending data of its connections."""
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            with suppress(TimeoutError):
                in_background(tunnel.close(), OPEN_TIMEOUT_S)

    def abandon(self, reason: str) -> None:
        """Reset all connections, and refuse new ones, because the scheduler is gone."""
        if (tunnel := self.tunnel) is not None:
            _background_loop().call_soon_threadsafe(tunnel.abandon, reason)


class _Background:
    """Background thread of this process's tunnels, and its event loop."""

    lock = threading.Lock()
    loop: asyncio.AbstractEventLoop | None = None


def _background_loop() -> asyncio.AbstractEventLoop:
    with _Background.lock:
        if _Background.loop is None:
            loop = _Background.loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="scalable tunnels", daemon=True).start()
        return _Background.loop


def in_background(part: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
    """Run a coroutine in the tunnels' thread. TimeoutError after ``timeout_s`` seconds."""
    return asyncio.run_coroutine_threadsafe(part, _background_loop()).result(timeout_s)


def _forget_background() -> None:
    """Reset the state in a forked process, which does not have the thread."""
    _Background.lock, _Background.loop = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_background)
