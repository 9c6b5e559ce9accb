"""`Folder`: entries as files of a directory that belongs to this user.

The directory may be shared by machines over NFS: nothing here needs locks, and times are compared
with the clock of the file server alone.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from scalable.caching.entries import is_key
from scalable.caching.function_index import FunctionIndex
from scalable.caching.own_files import (
    READING,
    TEMPORARY,
    Descriptor,
    check_own,
    make_private,
    touched,
)
from scalable.caching.payloads import Buffer
from scalable.caching.places import Opened, Stored
from scalable.errors import ClusterError
from scalable.files import write_whole

logger = logging.getLogger("scalable.caching")

#: Seconds for which a use is not noted again.
NOTED_S = 60.0
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Maximum number of pieces of one call of ``writev`` (IOV_MAX is at least 1024 on Linux).
_PIECES = 512
#: Smallest size in bytes of a piece that is written by itself.
_ALONE = 1 << 20


class Folder:
    """A directory of entries.

    Parameters
    ----------
    path
        Path of the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = path / "entries"
        self._entry = f"{self._entries}{os.sep}"  # text: a path of pathlib takes 10 us to make
        self._made: set[str] = set()
        self.index = FunctionIndex(path)

    def prepare(self) -> None:
        """Make the directory if it is missing.

        Raises
        ------
        ClusterError
            When it belongs to another user, or cannot be made.
        """
        hint = "name a directory of your own: results are read only from what belongs to you"
        try:
            make_private(self._entries)
            for directory in (self.path, self._entries):
                status = directory.stat()
                if status.st_uid != os.geteuid():
                    raise ClusterError(
                        f"{directory} belongs to another user (uid {status.st_uid}): no results "
                        "are kept in it",
                        hint=hint,
                    )
                if status.st_mode & 0o077:
                    directory.chmod(0o700)
        except FileExistsError as error:
            raise ClusterError(f"{self.path} is not a directory", hint=hint) from error
        except OSError as error:
            if not self._entries.is_dir():
                raise ClusterError(
                    f"the directory of results {self.path} cannot be made: {error.strerror}",
                    hint="name a directory in which you may write",
                ) from error
            logger.debug("the permissions of %s stay as they are: %s", self.path, error)

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """Open an entry.

        Raises
        ------
        Unreadable
            When it is not a regular file of this user that only this user can change.
        OSError
            When it does not exist, or cannot be read.
        """
        descriptor = os.open(f"{self._entry}{key[:2]}/{key}", READING)
        try:
            status = os.fstat(descriptor)
            check_own(status)
            yield Opened(Descriptor(descriptor), status.st_size, status.st_mtime)
        finally:
            os.close(descriptor)

    def exists(self, key: str) -> bool:
        """Return whether there is an entry now, whoever wrote it."""
        path = self._path(key)
        # Over NFS, opening the directory asks the server whether it changed.
        with suppress(OSError):
            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return path.exists()

    def write(
        self, key: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry.

        A writer that is killed leaves a temporary file, and never a part of an entry.

        Parameters
        ----------
        key
            Key of the entry.
        pieces
            Pieces of its bytes.
        forced
            Whether to wait until they are on the disk. Otherwise a loss of power may leave an
            entry that is not whole, and that readers recognise as such.
        replace
            Whether an entry of the key is replaced. Otherwise one of several writers succeeds.

        Raises
        ------
        FileExistsError
            When there is an entry that is not to be replaced.
        OSError
            When it cannot be written. Nothing is left then.
        """
        directory = self._directory_of(key)
        temporary = f"{directory}{os.sep}{TEMPORARY}{key[:16]}.{secrets.token_hex(8)}"
        try:
            try:
                descriptor = os.open(temporary, _WRITING, 0o600)
            except FileNotFoundError:  # somebody removed the directory
                make_private(Path(directory))
                descriptor = os.open(temporary, _WRITING, 0o600)
            try:
                _write_all(descriptor, pieces)
                if forced:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # over NFS, this may tell that the disk is full
            if replace:
                os.rename(temporary, f"{directory}{os.sep}{key}")  # noqa: PTH104 - texts, as above
            else:  # unlike a rename, a link fails where there is an entry
                os.link(temporary, f"{directory}{os.sep}{key}")
                os.unlink(temporary)  # noqa: PTH108
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise

    def link(self, key: str, other: Folder) -> None:
        """Add the entry that another directory has for a key, as the same file.

        Raises
        ------
        FileExistsError
            When there is an entry already.
        FileNotFoundError
            When the other directory has none.
        OSError
            When the file cannot have two names: another file system, for example.
        """
        source = other._path(key)
        if not self._path(key).exists():
            source.stat(follow_symlinks=False)  # most have none: no directory is made for them
        self._directory_of(key)
        self._path(key).hardlink_to(source)

    def _directory_of(self, key: str) -> str:
        """Return the directory of an entry that is about to be written; it exists."""
        directory = f"{self._entry}{key[:2]}"
        if directory not in self._made:
            make_private(Path(directory))
            self._made.add(directory)
        return directory

    def note_use(self, key: str) -> None:
        """Note that an entry is used now, by the time of its file."""
        with suppress(OSError):  # a read-only store keeps no order of use
            os.utime(f"{self._entry}{key[:2]}/{key}")

    def stored(self) -> Iterator[Stored]:
        """Iterate over the entries, whoever wrote them."""
        for item in self._items():
            if not is_key(item.name):
                continue
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                yield Stored(item.name, status.st_size, status.st_mtime)

    def remove(self, key: str) -> bool:
        """Remove an entry, and return whether it was there. A reader that has it open goes on."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def now(self) -> float:
        """Return seconds since the epoch by the clock of the file server.

        Raises
        ------
        OSError
            When the directory is read-only.
        """
        return touched(self.path / "clock")

    def read_note(self, name: str) -> str | None:
        """Return the text of a note that is kept beside the entries; None if there is none."""
        with suppress(OSError, UnicodeDecodeError):
            return (self.path / name).read_text(encoding="utf-8")
        return None

    def write_note(self, name: str, text: str) -> None:
        """Write or replace a note; raise OSError if that fails."""
        write_whole(self.path / name, text, mode=0o600)

    def remove_leftovers(self, older_than_s: float) -> int:
        """Remove temporary files of killed writers; return their number.

        Parameters
        ----------
        older_than_s
            Seconds since the last write, by the clock of the file server.
        """
        before = self.now() - older_than_s
        removed = 0
        for item in self._items():
            if not item.name.startswith(TEMPORARY):
                continue
            with suppress(OSError):
                if item.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(item.path)  # noqa: PTH108 - an entry of scandir
                    removed += 1
        return removed

    def _items(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._entries) as found:
                names = sorted(item.name for item in found)
        except OSError:
            return
        for name in names:
            with suppress(OSError), os.scandir(self._entries / name) as items:
                yield from items

    def _path(self, key: str) -> Path:
        return self._entries / key[:2] / key


def _write_all(descriptor: int, pieces: Sequence[Buffer]) -> None:
    """Write pieces from where they are: small ones together, large ones alone."""
    small: list[memoryview] = []
    for piece in pieces:
        view = memoryview(piece)
        small.append(view)
        if view.nbytes >= _ALONE or len(small) >= _PIECES:
            _write_together(descriptor, small)
            small = []
    _write_together(descriptor, small)


def _write_together(descriptor: int, views: list[memoryview]) -> None:
    waiting = [view for view in views if view.nbytes]
    while waiting:
        # The system takes up to 2 GiB at once, and less where a signal comes or a disk is full.
        written = os.writev(descriptor, list(islice(waiting, _PIECES)))
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.pop(0).nbytes
        if written:
            waiting[0] = waiting[0][written:]
