"""Archives of a workflow's files: how they are packed, and how they are unpacked safely."""

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
#: about as long as its bytes take to be encrypted: some milliseconds. Smaller ones take the
#: scheduler longer altogether (``benchmarks/carried_code.py``).
PART = 1 << 20
#: Level of zlib: the fastest, since sources become several times smaller at any level.
_LEVEL = 1


class ArchiveError(ValueError):
    """An archive is damaged, or has content that no packed archive has."""


@dataclass(frozen=True)
class CarriedFiles:
    """The archive of a workflow's files, without its content.

    Attributes
    ----------
    digest
        Digest of the unpacked archive.
    size
        Size of the unpacked archive in bytes.
    roots
        Directories to search for modules: the path on the client's machine, as ``sys.path`` has it,
        and the name in the archive.
    """

    digest: str
    size: int
    roots: tuple[tuple[str, str], ...] = ()

    def name_of(self, path: str) -> str | None:
        """Return the name in the archive of a file of the client; None if it is elsewhere."""
        for root, name in self.roots:
            with suppress(ValueError):
                return PurePosixPath(name, Path(path).relative_to(root)).as_posix()
        return None

    def to_message(self) -> list[Any]:
        """Return the attributes as plain values."""
        return [self.digest, self.size, [list(root) for root in self.roots]]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> Self:
        """Return the description that :meth:`to_message` wrote."""
        digest, size, roots = message
        return cls(digest, size, tuple((path, name) for path, name in roots))


@dataclass(frozen=True)
class Entry:
    """One file of an archive.

    Attributes
    ----------
    name
        Path relative to the base, with slashes.
    content
        Content of the file.
    executable
        Whether the owner may execute the file.
    """

    name: str
    content: bytes
    executable: bool = False


def pack(entries: Iterable[Entry]) -> tuple[str, int, bytes]:
    """Return the digest and the size of an archive, and its compressed content.

    Equal files give equal digests, on any machine and at any time.
    """
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
    """Return the parts in which an archive is sent."""
    view = memoryview(data)
    return [view[start : start + PART] for start in range(0, len(view), PART)]


def unpack(data: bytes, files: CarriedFiles, place: Path) -> None:
    """Unpack an archive into a new directory, which is complete or does not exist.

    Parameters
    ----------
    data
        Compressed content.
    files
        Description of the archive.
    place
        Path of the directory; only this user may change its parent.

    Raises
    ------
    ArchiveError
        If the content is not the described one, or holds anything but files below ``place``.
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
    """Return the content of an archive; never more of it than its description says."""
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
