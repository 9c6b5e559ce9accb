"""`Entry`, and the format of a cached result in a file or object.

Digests and sizes cover every byte, so any damaged file is rejected.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from operator import attrgetter
from typing import Any, Protocol

from scalable.cache.errors import UnstableValueError
from scalable.cache.payloads import Buffer, Function, Payload, unpacked

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
_HEX = frozenset("0123456789abcdef")
_texts_of = attrgetter("key", "function", "task", "tag", "run", "host")


class Unreadable(Exception):  # noqa: N818 - an outcome of reading, which never leaves this room
    """Raised for an entry that cannot be read and so counts as missing."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        #: One word for counting, such as ``torn``, ``corrupt``, ``foreign``, ``version`` or
        #: ``owner``.
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


def is_key(text: str) -> bool:
    """Return whether a string has the form of a key: 64 hexadecimal digits."""
    return len(text) == 64 and _HEX.issuperset(text)


def rendered(entry: Entry, payload: Payload) -> bytes:
    """Return all bytes of an entry before its payload."""
    digest = sha256()
    for piece in payload.pieces:
        digest.update(piece)
    document = {name: getattr(entry, name) for name in _NAMES}
    document["parts"] = dict(entry.parts)
    document |= {
        "digest": digest.hexdigest(),
        "sizes": [memoryview(piece).nbytes for piece in payload.pieces],
        "read_only": list(payload.read_only),
    }
    header = json.dumps(document, separators=(",", ":")).encode()
    fixed = _FIXED.pack(MAGIC, VERSION, len(header))
    return b"".join((fixed, sha256(fixed + header).digest(), header))


def read_header(source: EntryReader, size: int, key: str | None) -> tuple[Header, memoryview]:
    """Return the header of an entry of ``size`` bytes, and the payload bytes read with it.
    Raises Unreadable unless the header is complete, of this version, and of ``key`` if given.
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
    header = first[_PREFIX:end]
    digest = sha256(first[: _FIXED.size])
    digest.update(header)
    if digest.digest() != first[_FIXED.size : _PREFIX]:
        raise Unreadable("corrupt", "has a header that does not match its digest")
    found = _parsed(header)
    if key is not None and found.entry.key != key:
        raise Unreadable("foreign", f"belongs to the key {found.entry.key[:12]}...")
    if end + sum(found.sizes) != size:
        raise Unreadable("torn", f"has {size} bytes instead of {end + sum(found.sizes)}")
    return found, memoryview(first)[end:]


def _parsed(header: bytes) -> Header:
    """Parse a header whose digest is correct. If another program wrote it, it may be invalid."""
    try:
        document = json.loads(header.decode())  # json would guess the encoding of bytes
        entry = Entry(**{name: document[name] for name in _NAMES})
        found = Header(
            entry,
            document["digest"],
            tuple(document["sizes"]),
            tuple(document["read_only"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable("foreign", f"has a header that cannot be read: {error!r}") from error
    if not _is_sound(found):
        raise Unreadable("foreign", "has a header with values of wrong types")
    return found


def _is_sound(header: Header) -> bool:
    entry = header.entry
    parts = entry.parts
    return (
        {*map(type, _texts_of(entry))} == {str}
        and is_key(entry.key)
        and isinstance(parts, dict)
        and {*map(type, parts.values())} <= {str}
        and {type(entry.created), type(entry.cost_s)} <= {int, float}
        and isinstance(header.digest, str)
        and bool(header.sizes)
        and {*map(type, header.sizes)} == {int}
        and min(header.sizes) >= 0
        and sum(header.sizes) == entry.size
        and {*map(type, header.read_only)} <= {int}
    )


def read_payload(source: EntryReader, header: Header, begun: memoryview) -> Payload:
    """Return the payload after a header, in memory that the result owns. May raise Unreadable."""
    digest = sha256()
    pieces: list[Buffer] = []
    for size in header.sizes:
        if len(begun) >= size and not pieces:  # the pickle: unpickling copies what it needs
            piece: Buffer = begun[:size]
            digest.update(piece)
            begun = begun[size:]
        else:
            piece = _room(size)
            begun = _fill(memoryview(piece), source, begun, digest)
        pieces.append(piece)
    if digest.hexdigest() != header.digest:
        raise Unreadable("corrupt", "has a payload that does not match its digest")
    return Payload(tuple(pieces), header.read_only)


def check_payload(source: EntryReader, header: Header, begun: memoryview) -> None:
    """Check a payload without keeping it in memory. Raise Unreadable if it is damaged."""
    digest = sha256(begun)
    left = sum(header.sizes) - len(begun)
    while left > 0:
        more = source.read(min(left, CHUNK))
        if not more:
            raise Unreadable("torn", "is incomplete: its payload is cut off")
        digest.update(more)
        left -= len(more)
    if digest.hexdigest() != header.digest:
        raise Unreadable("corrupt", "has a payload that does not match its digest")


def _room(size: int) -> Buffer:
    """Return memory to read into. Large blocks are not zeroed first."""
    return mmap.mmap(-1, size) if size >= CHUNK else bytearray(size)


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


def pieces_of(entry: Entry, payload: Payload) -> Sequence[Buffer]:
    """Return the pieces of an entry, header and payload, in writing order."""
    return (rendered(entry, payload), *payload.pieces)


def read_result(source: EntryReader, header: Header, begun: memoryview, function: Function) -> Any:
    """Return the result of an entry, or raise Unreadable if it is damaged or not loadable."""
    payload = read_payload(source, header, begun)
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
