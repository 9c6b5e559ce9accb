"""Files and directories as arguments, and digests of files, which are read once."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from scalable.cache.entries import READING, Unreadable, check_own, make_private, touched
from scalable.cache.errors import UnstableValueError
from scalable.files import write_whole

logger = logging.getLogger("scalable.cache")

#: Seconds after a change in which a file may change again with the same time (git's documentation
#: calls such files racy): the coarsest clock of a file system has steps of 2 seconds.
RACY_S = 2.0
#: The same for files on another file system than the store's, whose clock may differ from ours.
RACY_ELSEWHERE_S = 60.0
#: Number of attempts to read a file that changes while it is read.
ATTEMPTS = 3
_CHUNK = 1 << 20


class FileDigests:
    """Digests of files, with the state of each file when it was read.
    A file is unchanged if its size, inode, modification time and change time are equal. Programs
    cannot set the change time, so a file with a restored modification time is read again. Without
    ``store``, digests stay in this process.
    """

    def __init__(self, store: Path | None = None) -> None:
        self._store = store
        self._known: dict[str, tuple[list[int], str]] = {}

    def known(self, path: str, status: os.stat_result) -> str | None:
        """Return a file's digest if its state is the same as when it was read, or None."""
        facts = _facts(status)
        found = self._known.get(path)
        if found is None or found[0] != facts:
            found = self._recorded(path)
        if found is None or found[0] != facts:
            return None
        self._known[path] = found
        return found[1]

    def remember(self, path: str, status: os.stat_result, digest: str) -> None:
        """Store a digest, unless the file is so new that another change may go unnoticed."""
        now, margin = self._now(status.st_dev)
        if now - max(status.st_mtime, status.st_ctime) < margin:
            logger.debug("%s changed just now: it will be read again", path)
            return
        self._known[path] = (_facts(status), digest)
        if self._store is None:
            return
        document = {"path": path, "facts": _facts(status), "digest": digest}
        record = self._record(path)
        with suppress(OSError):
            make_private(record.parent)
            write_whole(record, json.dumps(document), mode=0o600)

    def _recorded(self, path: str) -> tuple[list[int], str] | None:
        if self._store is None:
            return None
        with suppress(OSError, Unreadable, ValueError, TypeError, KeyError):
            descriptor = os.open(self._record(path), READING)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                check_own(os.fstat(descriptor))
                document = json.load(file)
            if document["path"] == path and len(bytes.fromhex(document["digest"])) == 32:
                return document["facts"], document["digest"]
        return None

    def _record(self, path: str) -> Path:
        assert self._store is not None
        name = sha256(os.fsencode(path)).hexdigest()
        return self._store / "files" / name[:2] / name

    def _now(self, device: int) -> tuple[float, float]:
        """Return a file system's time, and its possible error in seconds."""
        if self._store is not None:
            with suppress(OSError):
                if self._store.stat().st_dev == device:
                    return touched(self._store / "clock"), RACY_S
        return time.time(), RACY_ELSEWHERE_S


def digest_of_file(path: str | os.PathLike[str], known: FileDigests) -> str:
    """Return a file's SHA-256, following links. Raises OSError if unreadable or changing."""
    whole = os.path.abspath(path)  # noqa: PTH100 - links stay: what they lead to may change
    for _ in range(ATTEMPTS):
        with open(whole, "rb", buffering=0, opener=_opened) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{whole} is not a regular file: it cannot be hashed")
            digest = known.known(whole, status)
            if digest is not None:
                return digest
            hashed = sha256()
            buffer = memoryview(bytearray(_CHUNK))
            while number := file.readinto(buffer):
                hashed.update(buffer[:number])
            after = os.fstat(file.fileno())
        if _facts(after) == _facts(status):
            known.remember(whole, status, hashed.hexdigest())
            return hashed.hexdigest()
    raise OSError(f"{whole} changed {ATTEMPTS} times while it was read: it cannot be hashed")


def _opened(path: str, flags: int) -> int:
    """Open a file without blocking on a named pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _facts(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class File(os.PathLike[str]):
    """A file or directory that a task reads.

    The cache key covers the file's name and content, but not its directory: a changed file gets
    another key, a moved one does not. Of a directory, it covers all names and files within.
    A path given as a string is treated as a string.

    Parameters
    ----------
    path
        Path of the file, or of a directory with all its files.

    Examples
    --------
    >>> client.submit(run, scalable.File("scenario.csv"), cache=True)  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - links stay: they may lead elsewhere

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
        return Path(self._path)

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Open the file as the built-in ``open`` does."""
        return self.path.open(mode, **options)

    def __fspath__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"File({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def content(self, known: FileDigests) -> Iterator[tuple[str, str]]:
        """Yield the name and the digest of the file, or of the directory and all that is in it.

        Parameters
        ----------
        known
            Known digests of files. Unchanged files are not read again.

        Raises
        ------
        UnstableValueError
            When a file cannot be read, or changes while it is read.
        """
        root = self.path
        try:
            if not root.is_dir():
                yield root.name, digest_of_file(root, known)
                return
            yield root.name, "directory"
            for path, kind in sorted(_entries(root, frozenset())):
                digest = kind or digest_of_file(path, known)
                yield str(path.relative_to(root.parent)), digest
        except OSError as error:
            raise UnstableValueError(self, f"cannot be read ({error})") from error


def _entries(directory: Path, around: frozenset[tuple[int, int]]) -> Iterator[tuple[Path, str]]:
    """Yield the entries of a tree, each with an empty string, or with its kind if it is not a file.
    Links are followed, except to an enclosing directory.
    """
    status = directory.stat()
    around = around | {(status.st_dev, status.st_ino)}
    for path in directory.iterdir():
        if not path.is_dir():
            yield path, ""
        elif (inner := path.stat()) and (inner.st_dev, inner.st_ino) in around:
            yield path, "link to a directory around it"
        else:
            yield path, "directory"
            yield from _entries(path, around)
