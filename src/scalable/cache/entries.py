"""`Entry`, and the format of a cached result in a file or object.

Digests and sizes cover every byte, so any damaged file is rejected. Large buffers, such as those of
numpy arrays, stay out of the pickle (protocol 5), without copies. Classes of the script are stored
by name, so a loaded result has the reader's own class.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import logging
import mmap
import operator
import os
import pickle
import stat
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from scalable.cache.errors import UnstableValueError
from scalable.protocol.code import STANDS_FOR_SCRIPT

logger = logging.getLogger("scalable.cache")

MAGIC = b"\x93scaRES\n"
VERSION = 2
#: Largest size of a header in bytes.
MAX_HEADER = 16 << 20
#: Size in bytes of the first read of an entry. A small entry needs no other read.
FIRST = 64 << 10
#: Size in bytes of a read, small enough to be hashed from the processor's cache.
CHUNK = 1 << 20

# Layout of an entry:
#   magic      8 bytes
#   version    4 bytes, big-endian
#   length     4 bytes, big-endian: size of the header
#   digest    32 bytes: SHA-256 of the 16 bytes above and of the header
#   header    JSON: the entry, the digest of the payload and the sizes of its pieces
#   payload   a pickle, followed by the large buffers that it refers to
_FIXED = struct.Struct(">8sII")
_PREFIX = _FIXED.size + sha256().digest_size

#: Function of a task, if it is known.
Function: TypeAlias = Callable[..., Any] | None
Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


class Unreadable(Exception):  # noqa: N818 - an outcome of reading, which never leaves this room
    """Raised for an entry that cannot be read and so counts as missing."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        #: One word: ``torn``, ``corrupt``, ``foreign``, ``version``, ``owner`` or ``unloadable``.
        self.kind = kind
        #: Description of the problem, to follow the entry's name in a message.
        self.reason = reason


class EntryReader(Protocol):
    """Binary file, read from its start."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most ``size`` bytes."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read bytes into a buffer, and return their number."""


@dataclass(frozen=True)
class Entry:
    """Description of a cached result, without the result."""

    #: Cache key: 64 hexadecimal digits.
    key: str
    #: Digest or string of each part of the key, such as ``argument:scenario``.
    parts: Mapping[str, str]
    function: str
    #: Seconds since the epoch, by the clock of ``host``.
    created: float
    #: Duration of the task in seconds.
    cost_s: float
    #: Size of the pickled result in bytes.
    size: int
    task: str = ""
    tag: str = ""
    run: str = ""
    host: str = ""


_NAMES = tuple(field.name for field in fields(Entry))


@dataclass(frozen=True)
class Header:
    """An entry, and what is needed to read its payload."""

    entry: Entry
    #: SHA-256 of the payload in hexadecimal digits.
    digest: str
    #: Sizes in bytes of the pieces of the payload: the pickle, then its buffers.
    sizes: tuple[int, ...]
    #: Positions from 0 of the buffers that were read-only when they were stored.
    read_only: tuple[int, ...]


@dataclass(frozen=True)
class Payload:
    """Pickled result."""

    #: The pickle, then the buffers to which it refers.
    pieces: tuple[Buffer, ...]
    #: Positions from 0 of the read-only buffers.
    read_only: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.pieces)


def pieces_of(entry: Entry, payload: Payload) -> Sequence[Buffer]:
    """Return the pieces of an entry, header and payload, in writing order."""
    digest = sha256()
    for piece in payload.pieces:
        digest.update(piece)
    document = {name: getattr(entry, name) for name in _NAMES}
    document |= {
        "parts": dict(entry.parts),
        "digest": digest.hexdigest(),
        "sizes": [memoryview(piece).nbytes for piece in payload.pieces],
        "read_only": list(payload.read_only),
    }
    header = json.dumps(document, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, len(header))
    return (b"".join((fixed, sha256(fixed + header).digest(), header)), *payload.pieces)


def read_header(source: EntryReader, size: int, key: str) -> tuple[Header, memoryview]:
    """Return the header of an entry of ``size`` bytes, and the payload bytes read with it.
    Raises Unreadable unless the header is complete, of this version, and of ``key``.
    """
    first = source.read(min(size, FIRST)) or b""
    if len(first) < _PREFIX:
        raise Unreadable("torn", f"has only {len(first)} bytes, too few for an entry")
    magic, version, length = _FIXED.unpack_from(first)
    if magic != MAGIC:
        raise Unreadable("foreign", "is not a cache entry")
    if version != VERSION:
        raise Unreadable("version", f"has version {version}; this release reads {VERSION}")
    end = _PREFIX + length
    if length > MAX_HEADER or end > size:
        raise Unreadable("torn", f"has {size} bytes, too few for its header of {length} bytes")
    while len(first) < end:
        more = source.read(end - len(first))
        if not more:
            raise Unreadable("torn", "is incomplete: its header is cut off")
        first += more
    text = first[_PREFIX:end]
    digest = sha256(first[: _FIXED.size])
    digest.update(text)
    if digest.digest() != first[_FIXED.size : _PREFIX]:
        raise Unreadable("corrupt", "has a header that does not match its digest")
    try:
        document = json.loads(text.decode())  # json would guess the encoding of bytes
        found = Header(
            Entry(**{name: document[name] for name in _NAMES}),
            document["digest"],
            tuple(document["sizes"]),
            tuple(document["read_only"]),
        )
        whole = end + sum(found.sizes)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable("foreign", f"has a header that cannot be read: {error!r}") from error
    if found.entry.key != key:
        raise Unreadable("foreign", f"belongs to the key {str(found.entry.key)[:12]}...")
    if whole != size or min(found.sizes, default=0) < 0:
        raise Unreadable("torn", f"has {size} bytes instead of {whole}")
    return found, memoryview(first)[end:]


def read_result(source: EntryReader, header: Header, begun: memoryview, function: Function) -> Any:
    """Return the result of an entry, or raise Unreadable if it is damaged or not loadable.
    ``begun`` are the payload bytes that were read with the header.
    """
    payload = _read_payload(source, header, begun)
    try:
        value = unpacked(payload, function)
    except Exception as error:
        reason = f"cannot be unpickled: {type(error).__name__}: {error}"
        raise Unreadable("unloadable", reason) from error
    check_files = getattr(type(value), "check_cached", None)
    if check_files is not None:
        try:
            check_files(value)
        except UnstableValueError as error:
            raise Unreadable("unloadable", f"is out of date: {error}") from error
    return value


def _read_payload(source: EntryReader, header: Header, begun: memoryview) -> Payload:
    """Return the payload after a header, in memory that the result owns. May raise Unreadable."""
    digest = sha256()
    pieces: list[Buffer] = []
    for size in header.sizes:
        if len(begun) >= size and not pieces:  # the pickle: unpickling copies what it needs
            piece: Buffer = begun[:size]
            digest.update(piece)
            begun = begun[size:]
        else:
            # Large blocks are not zeroed first.
            piece = mmap.mmap(-1, size) if size >= CHUNK else bytearray(size)
            begun = _fill(memoryview(piece), source, begun, digest)
        pieces.append(piece)
    if digest.hexdigest() != header.digest:
        raise Unreadable("corrupt", "has a payload that does not match its digest")
    return Payload(tuple(pieces), header.read_only)


def _fill(view: memoryview, source: EntryReader, begun: memoryview, digest: Any) -> memoryview:
    """Fill a view from ``begun``, then from the file, and return the rest of ``begun``."""
    taken = min(len(begun), len(view))
    view[:taken] = begun[:taken]
    digest.update(view[:taken])
    position = taken
    while position < len(view):
        chunk = view[position : position + CHUNK]
        number = source.readinto(chunk)
        if not number:
            raise Unreadable("torn", "is incomplete: its payload is cut off")
        digest.update(chunk[:number])
        position += number
    return begun[taken:]


# Pickling -----------------------------------------------------------------------------------------

PROTOCOL = 5
#: Smallest size in bytes of a buffer that stays out of the pickle.
LARGE = 64 << 10
_SCRIPT: Final = "__main__"


def packed(value: Any) -> Payload:
    """Pickle a result without copying large buffers. Code of its class may raise any exception."""
    try:
        payload = _packed(pickle.dumps, value)
        if _SCRIPT.encode() not in payload.pieces[0]:
            return payload
    except Exception as error:  # noqa: BLE001 - the next attempt raises what there is to say
        logger.debug("a result of type %s needs cloudpickle: %r", type(value), error)
    return _packed(_dumped, value)


def _dumped(value: Any, **options: Any) -> bytes:
    """Pickle with cloudpickle, storing the script's module-level classes by name."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            # By value, cloudpickle would make another class of the same name.
            if isinstance(part, type) and part.__module__ == _SCRIPT:
                return None if "<" in part.__qualname__ else part.__qualname__
            if isinstance(part, io.TextIOWrapper) and part not in (sys.stdout, sys.stderr):
                raise pickle.PicklingError("an open file is not a result")  # its text would be
            return None

    file = io.BytesIO()
    pickler: Any = Pickler
    pickler(file, **options).dump(value)
    return file.getvalue()


def _packed(dumps: Any, value: Any) -> Payload:
    buffers: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        buffers.append(view)
        return False

    data = dumps(value, protocol=PROTOCOL, buffer_callback=stays_inside)
    read_only = tuple(place for place, view in enumerate(buffers) if view.readonly)
    return Payload((data, *buffers), read_only)


def unpacked(payload: Payload, function: Function = None) -> Any:
    """Return a result from its bytes. The result uses the payload's buffers.
    Outside the script's process, the globals of ``function`` provide classes of the script. May
    raise any exception, for example if a class is gone.
    """
    data, *buffers = payload.pieces
    views = [
        memoryview(buffer).toreadonly() if place in payload.read_only else buffer
        for place, buffer in enumerate(buffers)
    ]
    try:
        return pickle.loads(data, buffers=views)  # noqa: S301 - the store belongs to this user
    except pickle.UnpicklingError:
        # Usually it names a class of the script.
        return _Unpickler(io.BytesIO(data), views, _names(function)).load()


class _Unpickler(pickle.Unpickler):
    """Unpickler for :func:`_dumped`. It looks up classes of the script in ``names``."""

    def __init__(self, file: io.BytesIO, buffers: list[Buffer], names: Mapping[str, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._names = names

    def persistent_load(self, name: str) -> type[Any]:
        first, _, rest = name.partition(".")
        found = self._names.get(first)
        if rest and found is not None:
            found = operator.attrgetter(rest)(found)
        own = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
        if not isinstance(found, type) or own != (_SCRIPT, name):
            raise pickle.UnpicklingError(
                f"the class {name} of the script is not defined in this process"
            )
        return found


def _names(function: Function) -> Mapping[str, Any]:
    """Return the script's names, including the names used by a task's function."""
    while isinstance(function, functools.partial):
        function = function.func
    brought = getattr(function, "__globals__", {})
    script = sys.modules[_SCRIPT]
    return brought if hasattr(script, STANDS_FOR_SCRIPT) else {**vars(script), **brought}


# Files of this user -------------------------------------------------------------------------------

#: Flags for opening files: a named pipe must not block, and no link is followed.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_own(status: os.stat_result) -> None:
    """Raise Unreadable unless a file is regular and only this user can change it."""
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("foreign", "is not a regular file")
    if status.st_uid != os.geteuid():
        raise Unreadable("owner", f"belongs to another user (uid {status.st_uid})")
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise Unreadable("owner", f"can be changed by other users (mode {mode:o})")


def make_private(path: Path) -> None:
    """Create a directory and its missing parents for this user alone, or raise OSError."""
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def make_own(path: Path, *, restrict: bool = True) -> None:
    """Create a directory for this user alone, or check and ``restrict`` an existing one.
    Raises OSError if that is impossible, or if it belongs to another user.
    """
    with suppress(FileExistsError):
        make_private(path)
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory")
    if status.st_uid != os.geteuid():
        reason = f"{path} belongs to another user (uid {status.st_uid})"
        raise PermissionError(errno.EPERM, reason)
    if restrict and status.st_mode & 0o077:
        path.chmod(0o700)


def touched(path: Path) -> float:
    """Set a file's modification time by its server's clock, and return it. May raise OSError."""
    descriptor = os.open(path, READING | os.O_CREAT, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
