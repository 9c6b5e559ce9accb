"""Memory segments that processes of one machine share instead of sending large data.

A *segment* is a sealed memfd: it cannot be changed or shortened, and is freed with its last holder.
Other processes of the user map ``/proc/PID/fd/NUMBER``, copy on write.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import mmap
import os
import resource
import secrets
import stat
import sys
import weakref
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from scalable.liveness import identify_process

logger = logging.getLogger("scalable.protocol")

#: Minimum bytes of a buffer that is shared instead of sent.
LEAST = 1 << 20
#: Share of a process's permitted descriptors for segments. Each segment takes two.
_DESCRIPTOR_SHARE = 1 / 8
#: Minimum share of a segment that a part must have: a smaller one would keep the rest in memory.
_LEAST_SHARE = 1 / 2
#: Value from which a control group's limit means "no limit", in version 1 of control groups.
_NO_LIMIT = 1 << 60
_NAME = "scalable-segment"
_LINK = f"/memfd:{_NAME} "
#: Bytes of a page's entry in pagemap(5), and number of entries that are read at once.
_ENTRY, _PAGES_AT_ONCE = 8, 1 << 16
# Bits of an entry in pagemap(5): in memory, in the swap, belongs to a file.
_PRESENT, _SWAPPED, _OF_FILE = 63, 62, 61


class RefusedSegmentError(OSError):
    """Raised for a segment that differs from its description by another process."""


class Part(NamedTuple):
    """Range of a segment's bytes, described by one process for another."""

    #: Number of the segment's descriptor in the describing process.
    descriptor: int
    #: Number of the file, by which another file under that descriptor is detected.
    inode: int
    #: Bytes of the whole segment.
    size: int
    start: int
    length: int


class Segment:
    """An open segment, closed once the object and all its views are gone. Owns ``descriptor``."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        _segments.add(self)

    def part(self, start: int, length: int) -> Part:
        """Return the description by which another process opens a range of bytes."""
        status = os.fstat(self.descriptor)
        return Part(self.descriptor, status.st_ino, status.st_size, start, length)

    def view(self) -> memoryview:
        """Return a copy-on-write view of the bytes."""
        mapped = _map(self.descriptor)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        number = next(_numbers)
        _mapped[number] = (weakref.ref(mapped), address, self)
        weakref.finalize(mapped, _mapped.pop, number, None).atexit = False
        return memoryview(mapped)


#: Mappings by number, each with its address and its segment, which stays open with the mapping.
_mapped: dict[int, tuple[weakref.ref[mmap.mmap], int, Segment]] = {}
_numbers = count()
_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def _map(descriptor: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, trackfd=False)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)


def is_possible() -> bool:
    """Return whether the system supports segments."""
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def _seals() -> int:
    return fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def write_segment(data: memoryview) -> Segment:
    """Copy bytes into a new segment. Raises OSError if memory or descriptors run out."""
    segment = Segment(os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    done = 0
    while done < data.nbytes:
        done += os.write(segment.descriptor, data[done:])
    os.fchmod(segment.descriptor, 0o600)
    fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, _seals())
    return segment


def shared(data: memoryview) -> tuple[Segment, int] | None:
    """Return the segment with the given bytes and their start, or None. May copy the bytes."""
    known = _segment_around(data)
    if known is not None:
        return known
    if _has_many():
        return None
    try:
        return write_segment(data), 0
    except OSError as error:
        logger.debug("%d bytes are sent without shared memory: %s", data.nbytes, error)
        return None


def is_shared(data: memoryview) -> bool:
    """Return whether bytes belong to a segment and are unchanged."""
    return _segment_around(data) is not None


def open_part(process: int, part: Part) -> memoryview:
    """Return a copy-on-write view of bytes that another process shares.
    Raises RefusedSegmentError for a mismatching file, and OSError if it cannot be opened.
    """
    if not all(type(number) is int and number >= 0 for number in (process, *part)):
        raise RefusedSegmentError(f"{part} does not describe a segment")
    segment = _open(Path(f"/proc/{process}/fd/{part.descriptor}"))
    held = segment.part(part.start, part.length)._replace(descriptor=part.descriptor)
    if held != part or part.start + part.length > part.size:
        raise RefusedSegmentError(f"process {process} has no segment like {part}")
    if _has_many():
        return _copy(segment, part)
    try:
        return segment.view()[part.start : part.start + part.length]
    except OSError as error:  # a limit on addresses or on committed memory
        logger.debug("%s is copied instead of mapped: %s", part, error)
        return _copy(segment, part)


def _open(path: Path) -> Segment:
    """Open a segment of another process, but no other file."""
    if not str(path.readlink()).startswith(_LINK):
        raise RefusedSegmentError(f"{path} is not a segment")
    segment = Segment(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    status = os.fstat(segment.descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise RefusedSegmentError(f"{path} is not a segment of this user")
    if fcntl.fcntl(segment.descriptor, fcntl.F_GET_SEALS) & _seals() != _seals():
        raise RefusedSegmentError(f"{path} can still be changed")
    return segment


def _copy(segment: Segment, part: Part) -> memoryview:
    data = memoryview(bytearray(part.length))
    done = 0
    while done < part.length:
        done += os.preadv(segment.descriptor, [data[done:]], part.start + done)
    return data


def _has_many() -> bool:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and len(_segments) > limit * _DESCRIPTOR_SHARE


# Bytes that are in a segment ----------------------------------------------------------------------


def _segment_around(data: memoryview) -> tuple[Segment, int] | None:
    """Return the segment and start of mapped, unchanged bytes, or None for other bytes."""
    if not _mapped:
        return None
    address = _address_of(data)
    if address is None:
        return None
    for ref, begin, segment in list(_mapped.values()):
        mapped = ref()  # while it is held, no other memory can have its addresses
        if mapped is None or not begin <= address < begin + len(mapped):
            continue
        enough = data.nbytes >= len(mapped) * _LEAST_SHARE
        return (
            (segment, address - begin) if enough and _is_as_mapped(address, data.nbytes) else None
        )
    return None


def _address_of(data: memoryview) -> int | None:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    except TypeError:  # it is read-only
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        return int(numpy.frombuffer(data, "u1").__array_interface__["data"][0])


def _is_as_mapped(address: int, size: int) -> bool:
    """Return whether a view has no private page of the process, as pagemap(5) reports."""
    first, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
            for begin in range(first, end, _PAGES_AT_ONCE):
                pages = min(_PAGES_AT_ONCE, end - begin)
                found = os.pread(pagemap.fileno(), pages * _ENTRY, begin * _ENTRY)
                if len(found) < pages * _ENTRY or _has_own(found):
                    return False
    except OSError:
        return False
    return True


def _has_own(pagemap: bytes) -> bool:
    """Return whether the given pagemap entries contain private pages."""
    # All entries are one large number: a loop over 2**18 of them for each GiB would take longer.
    entries = int.from_bytes(pagemap, sys.byteorder)
    used = entries | entries << (_PRESENT - _SWAPPED)
    own = used & ~(entries << (_PRESENT - _OF_FILE))
    mark = (1 << _PRESENT).to_bytes(_ENTRY, sys.byteorder) * (len(pagemap) // _ENTRY)
    return bool(own & int.from_bytes(mark, sys.byteorder))


# Processes that can share memory ------------------------------------------------------------------


def introduction() -> dict[str, Any]:
    """Return the facts by which :func:`process_of` finds this process. May raise OSError."""
    return _introduction(os.getpid())[0]


@cache  # keeps the segment until the process exits
def _introduction(process: int) -> tuple[dict[str, Any], Segment]:
    word = secrets.token_bytes(16)
    segment = write_segment(memoryview(word))
    found = identify_process()
    facts = {
        "process": process,
        "system": [found["boot_id"], found["pid_namespace"], os.geteuid(), _memory_domain()],
        "word": word,
        "part": list(segment.part(0, len(word))),
    }
    return facts, segment


def process_of(told: Any) -> int | None:
    """Return the sender's process id if memory can be shared with it, or None."""
    try:
        own = introduction()
        process, part = told["process"], Part(*told["part"])
        if list(told["system"]) != own["system"] or None in own["system"]:
            return None
        if bytes(open_part(process, part)) != told["word"]:
            return None
    except (OSError, TypeError, KeyError, ValueError) as error:
        logger.debug("no memory is shared with %.200r: %r", told, error)
        return None
    return int(process)


def _memory_domain() -> str:
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return ""
    return limiting_group(groups, Path("/sys/fs/cgroup"))


def limiting_group(groups: str, root: Path) -> str:
    """Return the control group (see cgroups(7)) that limits a process's memory, or ""."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = top / path.lstrip("/")
        for each in (group, *group.parents):
            if _is_limit(each / name):
                return str(each)
            if each == top:
                break
    return ""


def _is_limit(file: Path) -> bool:
    try:
        written = file.read_text(encoding="ascii").strip()
    except OSError:
        return False
    return written != "max" and int(written) < _NO_LIMIT
