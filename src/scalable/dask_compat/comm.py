"""Seams of connections: shared memory in place of sent data, and TLS credentials."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import os
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import distributed.core
from distributed import Security
from distributed.comm.core import CommClosedError
from distributed.comm.tcp import (
    C_INT_MAX,
    TCP,
    TLS,
    TCPConnector,
    TCPListener,
    TLSConnector,
    TLSListener,
    _add_frames_header,
    convert_stream_closed_error,
)
from distributed.comm.utils import OFFLOAD_THRESHOLD, from_frames, to_frames
from distributed.protocol.core import dumps
from distributed.protocol.serialize import (
    Serialized,
    register_serialization_family,
)
from distributed.utils import DequeHandler, ensure_memoryview, nbytes, offload
from tornado.iostream import StreamClosedError

from scalable import settings
from scalable.protocol import shared_memory
from scalable.protocol.shared_memory import LEAST, Part, RefusedSegmentError, Segment

logger = logging.getLogger("scalable.protocol")

#: Key of a process's introduction in the handshake of a connection.
INTRODUCTION = "scalable-shared-memory"
#: Name in the header of a message with shared frames.
_SHARING = "scalable-shared-frames"
#: Frame size from which Dask splits frames: never, as each part would be a segment of its own.
_WHOLE = 1 << 62
#: Seconds for which segments are kept that were not opened when this side closed the connection.
_KEPT_AFTER_CLOSE_S = 60.0


class SharingTCP(TCP):
    """A connection that shares large frames with a peer on the same machine.
    A segment is kept until the receiver's next message confirms it or the connection closes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Process id of the peer if memory is shared with it, otherwise None.
        self.sharer: int | None = None
        self._numbers = count()
        #: Segments that the peer has not opened yet.
        self._lent: dict[int, Segment] = {}
        #: Numbers of the segments opened here, which the next message confirms.
        self._opened: list[int] = []

    def handshake_info(self) -> dict[str, Any]:
        """Return Dask's handshake values, with an offer to share memory if that is enabled."""
        info: dict[str, Any] = super().handshake_info()
        return info if (own := _introduction()) is None else {**info, INTRODUCTION: own}

    def handshake_configuration(  # type: ignore[override]
        self, local: dict[str, Any], remote: dict[str, Any]
    ) -> dict[str, Any]:
        """Return Dask's options, and detect whether memory is shared with the peer."""
        options: dict[str, Any] = super().handshake_configuration(local, remote)
        if INTRODUCTION in local and INTRODUCTION in remote:
            self.sharer = shared_memory.process_of(remote[INTRODUCTION])
        if self.sharer is not None:
            options["compression"] = None  # it would take longer than sharing
        return options

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> Any:
        """Send a message, and return the size in bytes of its sent and shared frames."""
        if self.sharer is None or self.stream is None:
            return await super().write(msg, serializers, on_error)
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=_WHOLE,
        )
        if not self._opened and max(map(nbytes, frames)) <= LEAST:
            return self._queue(frames)
        large = [n for n, frame in enumerate(frames) if nbytes(frame) > LEAST]
        share, total = partial(_share, [frames[n] for n in large]), sum(map(nbytes, frames))
        is_long = OFFLOAD_THRESHOLD and total > OFFLOAD_THRESHOLD
        found = await offload(share) if is_long and self.allow_offload else share()
        self._queue(self._with_segments(frames, dict(zip(large, found, strict=True))))
        return total

    def _with_segments(
        self, frames: list[Any], found: dict[int, tuple[Segment, int] | None]
    ) -> list[Any]:
        """Return a message's frames, with shared frames replaced by references to segments."""
        parts = []
        for place, shared in found.items():
            if shared is not None:
                segment, start = shared
                number = next(self._numbers)
                self._lent[number] = segment
                parts.append((place, number, *segment.part(start, nbytes(frames[place]))))
        header = {"serializer": _SHARING, "parts": parts, "opened": self._opened}
        self._opened = []
        away = {place for place, *_ in parts}
        sent = [frame for place, frame in enumerate(frames) if place not in away]
        return list(dumps(Serialized(header, sent)))

    async def read(self, deserializers: Any = None) -> Any:
        known = deserializers if deserializers is None else [*deserializers, _SHARING]
        msg = await super().read(known)
        if type(msg) is not Serialized or msg.header.get("serializer") != _SHARING:
            return msg
        frames = self._with_opened(msg)
        return await from_frames(
            frames,
            deserialize=self.deserialize,
            deserializers=deserializers,
            allow_offload=self.allow_offload,
        )

    def _with_opened(self, msg: Serialized) -> list[Any]:
        whole = list(msg.frames)
        try:
            if self.sharer is None:
                raise RefusedSegmentError("this connection does not share memory")
            for number in msg.header["opened"]:
                self._lent.pop(number, None)
            for place, number, *part in msg.header["parts"]:
                whole.insert(place, shared_memory.open_part(self.sharer, Part(*part)))
                self._opened.append(number)
        except (OSError, TypeError, ValueError, KeyError) as error:
            self.abort()
            # If the other process has exited, later connections are not concerned.
            if not isinstance(error, FileNotFoundError | ProcessLookupError):
                _stop(error)
            raise CommClosedError(f"in {self}: shared memory: {error}") from error
        return whole

    def _queue(self, frames: list[Any]) -> int:
        """Queue frames as ``TCP.write`` does, and return their total size in bytes."""
        stream: Any = self.stream
        if stream is None or stream.closed():
            self.abort()
            raise CommClosedError(f"in {self}: it is closed")
        frames, sizes, total = _add_frames_header(frames)
        try:
            for size, frame in zip(sizes, frames, strict=True):
                data = ensure_memoryview(frame)
                for begin in range(0, size, C_INT_MAX):
                    chunk = data[begin : begin + C_INT_MAX]
                    stream._write_buffer.append(chunk)  # noqa: SLF001
                    stream._total_write_index += len(chunk)  # noqa: SLF001
            stream.write(b"")
        except StreamClosedError as error:
            self.stream = None
            self._closed = True
            self._lent.clear()
            convert_stream_closed_error(self, error)
        except BaseException:
            self.abort()
            raise
        return int(total)

    def abort(self) -> None:
        super().abort()
        self._lent.clear()

    def close(self) -> Any:
        """Close the connection once all data is written. The peer may still open segments then."""
        lent, self._lent = self._lent, {}
        if lent and not self.closed():
            asyncio.get_running_loop().call_later(_KEPT_AFTER_CLOSE_S, lent.clear)
        return super().close()


class SharingTLS(SharingTCP, TLS):
    """An encrypted connection that shares large frames with the peer."""


def _share(frames: list[Any]) -> list[tuple[Segment, int] | None]:
    return [shared_memory.shared(ensure_memoryview(frame)) for frame in frames]


# What is shared in this process -------------------------------------------------------------------

#: Set when another process's segment was missing: later connections share nothing.
_stopped = threading.Event()


def _stop(error: BaseException) -> None:
    if not _stopped.is_set():
        logger.warning("large data is sent through sockets from now on: %s", error)
    _stopped.set()


def _introduction() -> dict[str, Any] | None:
    if _stopped.is_set() or not settings.shares_memory():
        return None
    try:
        return shared_memory.introduction()
    except OSError as error:
        _stop(error)
        return None


def share_memory() -> None:
    """Make later connections over TCP and TLS share memory where possible. Idempotent."""
    if not shared_memory.is_possible() or not settings.shares_memory():
        return
    register_serialization_family(_SHARING, None, Serialized)
    TCPConnector.comm_class = TCPListener.comm_class = SharingTCP
    TLSConnector.comm_class = TLSListener.comm_class = SharingTLS


# What servers keep --------------------------------------------------------------------------------

_takes_comm: WeakKeyDictionary[Callable[..., Any], bool] = WeakKeyDictionary()


def expects_comm(handler: Callable[..., Any]) -> bool:
    """Return whether a handler's first parameter is the connection.
    Dask caches this for ever, and with the handlers all closed workers and schedulers of a process.
    """
    known = _takes_comm.get(handler)
    if known is None:
        known = next(iter(inspect.signature(handler).parameters), None) == "comm"
        _takes_comm[handler] = known
    return known


def _keep_as_text(handler: DequeHandler, record: logging.LogRecord) -> None:
    """Keep a log record without objects: a traceback keeps connections and the data of tasks."""
    kept = copy.copy(record)
    if record.exc_info:
        kept.exc_text = logging.Formatter().formatException(record.exc_info)
        kept.exc_info = None
    with suppress(Exception):  # of the arguments' own code, or they do not match
        kept.msg, kept.args = record.getMessage(), None
    handler.deque.append(kept)


def release_closed() -> None:
    """Release the workers, schedulers and connections of this process once they have closed."""
    core: Any = distributed.core
    core._expects_comm = expects_comm  # noqa: SLF001
    DequeHandler.emit = _keep_as_text  # type: ignore[method-assign]


# TLS credentials ----------------------------------------------------------------------------------


class KeptSecurity(Security):
    """A ``distributed.Security`` whose key is never on a disk.
    OpenSSL reads only files, so on Linux the key is in memory (``memfd_create(2)``). Servers issue
    no session tickets: two of them cost 0.4 of a handshake's 1.5 ms of CPU time, and Dask never
    resumes a session.
    """

    __slots__ = Security.__slots__  # Dask uses them as the names of its parameters

    def _get_tls_context(self, tls: dict[str, Any], purpose: Any) -> ssl.SSLContext:
        certificate, key = tls.get("cert"), tls.get("key")
        is_text = certificate and key and "\n" in certificate and "\n" in key
        if is_text and hasattr(os, "memfd_create"):
            with os.fdopen(os.memfd_create("scalable-credentials"), "wb") as file:
                file.write(f"{certificate}\n{key}\n".encode())
                file.flush()
                path = f"/proc/self/fd/{file.fileno()}"
                context = super()._get_tls_context(tls | {"cert": path, "key": path}, purpose)
        else:
            context = super()._get_tls_context(tls, purpose)
        if context is not None and purpose is ssl.Purpose.CLIENT_AUTH:
            context.num_tickets = 0
        return context  # type: ignore[no-any-return]
