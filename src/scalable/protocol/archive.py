"""Archives of a workflow's files, and their safe unpacking."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, Self

#: Bytes of one message with a part of an archive. A message delays all others of its scheduler for
#: about as long as its bytes take to be encrypted: some milliseconds. Smaller parts take the
#: scheduler longer in total.
PART = 1 << 20
#: Level of zlib: the fastest, since sources become several times smaller at any level.
_LEVEL = 1


class ArchiveError(ValueError):
    """Raised for an archive that is damaged, or whose content :func:`pack` cannot have made."""


@dataclass(frozen=True)
class CarriedFiles:
    """Description of an archive of a workflow's files, without its content."""

    #: Digest of the unpacked archive.
    digest: str
    #: Bytes of the unpacked archive.
    size: int
    #: (directory on the client's machine as in ``sys.path``, its name in the archive).
    roots: tuple[tuple[str, str], ...] = ()

    def name_of(self, path: str) -> str | None:
        """Return the archive name of a client's file, or None if it is outside the roots."""
        for root, name in self.roots:
            with suppress(ValueError):
                return PurePosixPath(name, Path(path).relative_to(root)).as_posix()
        return None

    def to_message(self) -> list[Any]:
        return [self.digest, self.size, [list(root) for root in self.roots]]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> Self:
        digest, size, roots = message
        return cls(digest, size, tuple((path, name) for path, name in roots))


@dataclass(frozen=True)
class Entry:
    """One file of an archive."""

    #: Path relative to the base, with slashes.
    name: str
    content: bytes
    executable: bool = False


def pack(entries: Iterable[Entry]) -> tuple[str, int, bytes]:
    """Return digest, size and compressed content. Equal files give equal digests everywhere."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in sorted(entries, key=lambda entry: entry.name):
            about = tarfile.TarInfo(entry.name)  # owner, group and time are 0
            about.size = len(entry.content)
            about.mode = 0o700 if entry.executable else 0o600
            archive.addfile(about, io.BytesIO(entry.content))
    raw = file.getbuffer()
    return _digest(raw), len(raw), zlib.compress(raw, _LEVEL)


def _digest(raw: bytes | memoryview) -> str:
    return blake2b(raw, digest_size=16).hexdigest()


def parts_of(data: bytes) -> Sequence[memoryview]:
    """Split an archive into the parts in which it is sent."""
    view = memoryview(data)
    return [view[start : start + PART] for start in range(0, len(view), PART)]


def unpack(data: bytes, files: CarriedFiles, place: Path) -> None:
    """Unpack an archive into the directory ``place``, which is complete or does not exist.

    Only this user may change its parent. Raises ArchiveError if the content is not the described
    one, or if an entry is not a file below ``place``.
    """
    raw = _uncompressed(data, files)
    unfinished = place.parent / f".{place.name}-{secrets.token_hex(4)}"
    unfinished.mkdir(mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                _write(archive, member, unfinished)
        unfinished.rename(place)
    except (tarfile.TarError, OSError) as error:
        if place.is_dir():
            return  # another thread was faster
        raise ArchiveError(f"archive {files.digest} cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _uncompressed(data: bytes, files: CarriedFiles) -> bytes:
    """Return an archive's content. Decompresses at most one byte more than described."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, files.size + 1)
    except zlib.error as error:
        raise ArchiveError(f"archive {files.digest} is damaged: {error}") from error
    if len(raw) != files.size or _digest(raw) != files.digest:
        raise ArchiveError(f"archive {files.digest} has other content than its digest says")
    return raw


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    name = PurePosixPath(member.name)
    if not member.isreg() or name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise ArchiveError(f"the archive holds {member.name!r}, which is no file below it")
    path = place / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    mode = 0o700 if member.mode & 0o100 else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, mode), "wb") as file:  # noqa: PTH123 - of a descriptor
        shutil.copyfileobj(source, file)
