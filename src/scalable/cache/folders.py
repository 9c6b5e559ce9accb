"""`Folder`: entries as files of a directory that belongs to this user.

Machines may share the directory over NFS, since it needs no locks and compares times only with the
file server's clock.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path

from scalable.cache.differences import nearness
from scalable.cache.entries import Entry, Unreadable, is_key
from scalable.cache.own_files import (
    READING,
    TEMPORARY,
    Descriptor,
    check_own,
    make_private,
    touched,
)
from scalable.cache.payloads import Buffer
from scalable.cache.places import Opened, Stored
from scalable.errors import ClusterError
from scalable.files import write_whole

logger = logging.getLogger("scalable.cache")

#: Seconds after a recorded use in which further uses are not recorded.
NOTED_S = 60.0
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Maximum number of pieces of one ``writev`` (IOV_MAX is at least 1024 on Linux).
_PIECES = 512
#: Smallest size in bytes of a piece that is written separately.
_ALONE = 1 << 20


class Folder:
    """Directory of entries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries = path / "entries"
        self._entry = f"{self._entries}{os.sep}"  # a string: a pathlib path takes 10 us to make
        self._made: set[str] = set()
        self.index = FunctionIndex(path)

    def prepare(self) -> None:
        """Create a missing directory. Raises ClusterError if that fails or another user owns it."""
        hint = "use a directory of your own: results are read only from files that belong to you"
        try:
            make_private(self._entries)
            for directory in (self.path, self._entries):
                status = directory.stat()
                if status.st_uid != os.geteuid():
                    raise ClusterError(
                        f"{directory} belongs to another user (uid {status.st_uid}): no results "
                        "are stored in it",
                        hint=hint,
                    )
                if status.st_mode & 0o077:
                    directory.chmod(0o700)
        except FileExistsError as error:
            raise ClusterError(f"{self.path} is not a directory", hint=hint) from error
        except OSError as error:
            if not self._entries.is_dir():
                raise ClusterError(
                    f"cannot create the results directory {self.path}: {error.strerror}",
                    hint="use a directory that you can write to",
                ) from error
            logger.debug("could not change the permissions of %s: %s", self.path, error)

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """Open an entry. Raises Unreadable unless it is a file that only this user can change."""
        descriptor = os.open(f"{self._entry}{key[:2]}/{key}", READING)
        try:
            status = os.fstat(descriptor)
            check_own(status)
            yield Opened(Descriptor(descriptor), status.st_size, status.st_mtime)
        finally:
            os.close(descriptor)

    def exists(self, key: str) -> bool:
        """Return whether an entry exists now, regardless of its owner."""
        path = self._path(key)
        # Over NFS, opening the directory makes the client check it for changes.
        with suppress(OSError):
            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return path.exists()

    def write(
        self, key: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry. A killed writer leaves a temporary file, not a partial entry.
        Unless ``forced``, a power failure may leave a damaged entry, which readers recognise.
        Unless ``replace``, only one of several writers succeeds, and the others get
        FileExistsError. A failed write raises OSError and leaves nothing.
        """
        directory = self._directory_of(key)
        temporary = f"{directory}{os.sep}{TEMPORARY}{key[:16]}.{secrets.token_hex(8)}"
        try:
            try:
                descriptor = os.open(temporary, _WRITING, 0o600)
            except FileNotFoundError:  # another process removed the directory
                make_private(Path(directory))
                descriptor = os.open(temporary, _WRITING, 0o600)
            try:
                _write_all(descriptor, pieces)
                if forced:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # over NFS, this may report a full disk
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
        """Add another directory's entry as a hard link to the same file.
        Raises FileExistsError if the entry exists here, FileNotFoundError if it is missing there,
        and OSError if it cannot be linked, for example from another file system.
        """
        source = other._path(key)
        if not self._path(key).exists():
            source.stat(follow_symlinks=False)  # most have none: no directory is made for those
        self._directory_of(key)
        self._path(key).hardlink_to(source)

    def _directory_of(self, key: str) -> str:
        """Return the directory of an entry, creating it if necessary."""
        directory = f"{self._entry}{key[:2]}"
        if directory not in self._made:
            make_private(Path(directory))
            self._made.add(directory)
        return directory

    def note_use(self, key: str) -> None:
        """Set an entry's time of last use (its file's modification time) to now."""
        with suppress(OSError):  # a read-only store keeps no order of use
            os.utime(f"{self._entry}{key[:2]}/{key}")

    def stored(self) -> Iterator[Stored]:
        """Iterate over the entries, of any owner."""
        for item in self._items():
            if not is_key(item.name):
                continue
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                yield Stored(item.name, status.st_size, status.st_mtime)

    def remove(self, key: str) -> bool:
        """Delete an entry, and return whether it existed. Readers are not interrupted."""
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def now(self) -> float:
        """Return epoch seconds by the file server's clock. Raises OSError if read-only."""
        return touched(self.path / "clock")

    def read_note(self, name: str) -> str | None:
        """Return a note stored next to the entries, or None."""
        with suppress(OSError, UnicodeDecodeError):
            return (self.path / name).read_text(encoding="utf-8")
        return None

    def write_note(self, name: str, text: str) -> None:
        write_whole(self.path / name, text, mode=0o600)

    def remove_leftovers(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete killed writers' temporary files of at least this age, and return their number."""
        before = self.now() - older_than_s
        removed = 0
        for item in self._items():
            if not item.name.startswith(TEMPORARY):
                continue
            with suppress(OSError):
                if item.stat(follow_symlinks=False).st_mtime < before:
                    if not dry_run:
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
    """Write pieces without copies: small ones together, large ones separately."""
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
        # One call writes at most 2 GiB, and less after a signal or on a full disk.
        written = os.writev(descriptor, list(islice(waiting, _PIECES)))
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.pop(0).nbytes
        if written:
            waiting[0] = waiting[0][written:]


# Function index -----------------------------------------------------------------------------------

#: Largest number of results of one function that are compared with a task.
COMPARED = 128
#: Largest number of results of one function that a process keeps in memory.
REMEMBERED = 100_000
#: Largest number of missing results that are skipped in one search.
SKIPPED = 32
#: Number of files of a function above which they are merged.
MANY_FILES = 32
#: Seconds without a new line after which the writer of a file is assumed to have exited.
QUIET_S = 600.0

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Known:
    """Results of one function, in the order in which they became known."""

    #: Parts of each key.
    parts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: Position of each key in the order.
    places: dict[str, int] = field(default_factory=dict)
    #: Time at which each result was stored, in seconds since 1970.
    created: dict[str, float] = field(default_factory=dict)
    #: Keys that contain a part, by its name and its string.
    holders: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    #: Inode and number of bytes read so far, by file name.
    read: dict[str, tuple[int, int]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)

    def add(self, key: str, parts: Mapping[str, str], created: float = 0.0) -> None:
        """Add a result, unless there are too many. A time of 0 counts as the oldest."""
        if key not in self.parts and len(self.parts) < REMEMBERED:
            self.parts[key] = parts
            self.places[key] = next(self.counter)
            self.created[key] = created
            for item in parts.items():
                self.holders[item].append(key)

    def nearest(self, parts: Mapping[str, str], before: float | None = None) -> list[str]:
        """Return similar keys, ordered by equal arguments, number of equal parts, and time."""
        wanted = parts.items()
        lists = sorted((self.holders[item] for item in wanted if item in self.holders), key=len)
        keys: dict[str, None] = {}
        for holders in lists:  # the rarest parts are the most specific
            left = COMPARED - len(keys)
            if left <= 0:
                break
            keys.update(
                dict.fromkeys(key for key in holders[-left:] if self._is_there(key, before))
            )
        if not keys:
            latest = (key for key in reversed(self.parts) if self._is_there(key, before))
            keys.update(dict.fromkeys(islice(latest, 1)))
        order = {key: (nearness(parts, self.parts[key]), self.places[key]) for key in keys}
        return sorted(order, key=order.__getitem__, reverse=True)

    def _is_there(self, key: str, before: float | None) -> bool:
        return key in self.parts and (before is None or self.created[key] < before)

    def nearest_entry(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        before: float | None = None,
    ) -> Entry | None:
        """Return the nearest existing entry, and drop entries that are gone."""
        for _ in range(SKIPPED):
            key = next(iter(self.nearest(parts, before)), None)
            if key is None:
                break
            entry = entry_of(key)
            if entry is not None and entry.function == function:
                return entry
            del self.parts[key], self.places[key], self.created[key]
        return None


class FunctionIndex:
    """Results of each function in one store directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "functions"
        self._clock = directory / "clock"
        self._name = ""
        self._process = 0
        self._is_torn = False
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()

    def add(self, entry: Entry) -> None:
        """Add a result. Errors are ignored, since explanations can use another result."""
        line = _line_of(entry)
        directory = self._directory_of(entry.function)
        with self._lock:
            if self._process != os.getpid():
                self._name, self._process = f"{secrets.token_hex(8)}.lines", os.getpid()
            data = b"\n" * self._is_torn + line.encode() + b"\n"
            try:
                try:
                    descriptor = os.open(directory / self._name, _APPENDING, 0o600)
                except FileNotFoundError:
                    make_private(directory)
                    descriptor = os.open(directory / self._name, _APPENDING, 0o600)
                try:
                    self._is_torn = os.write(descriptor, data) != len(data)
                finally:
                    os.close(descriptor)
            except OSError as error:
                logger.debug("could not write the index of %s: %s", entry.function, error)

    def nearest(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        *,
        before: float | None = None,
    ) -> Entry | None:
        with self._lock:
            known = self._known.setdefault(function, Known())
            self._read_new_lines(self._directory_of(function), known)
            return known.nearest_entry(function, parts, entry_of, before)

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Rewrite the index, and delete exited processes' files. May raise OSError."""
        before = touched(self._clock) - QUIET_S
        old = [
            (path, status.st_size)
            for path in self._directory.glob("*/*.lines")
            if (status := path.stat()).st_mtime < before
        ]
        lines: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            lines[entry.function].append(_line_of(entry))
        for function, texts in lines.items():
            directory = self._directory_of(function)
            make_private(directory)
            path = directory / f"{secrets.token_hex(8)}.lines"
            descriptor = os.open(path, _APPENDING | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                file.write("\n".join(texts) + "\n")
        for path, size in old:
            with suppress(OSError):
                if path.stat().st_size == size:
                    path.unlink()
                    path.parent.rmdir()  # if it is empty

    def is_worn(self) -> bool:
        """Return whether a function has so many files that reading them is slow."""
        counts: dict[Path, int] = defaultdict(int)
        for path in self._directory.glob("*/*.lines"):
            counts[path.parent] += 1
        return max(counts.values(), default=0) > MANY_FILES

    def _directory_of(self, function: str) -> Path:
        name = sha256(function.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._directory / name

    def _read_new_lines(self, directory: Path, known: Known) -> None:
        with suppress(OSError), os.scandir(directory) as items:
            for item in sorted(items, key=lambda item: item.name):
                with suppress(OSError, Unreadable):
                    self._read_new_lines_of(item, known)

    def _read_new_lines_of(self, item: os.DirEntry[str], known: Known) -> None:
        descriptor = os.open(item.path, READING)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(descriptor)
            check_own(status)
            inode, read = known.read.get(item.name, (status.st_ino, 0))
            if inode != status.st_ino or read > status.st_size:
                read = 0
            if read == status.st_size:
                return
            file.seek(read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        known.read[item.name] = (status.st_ino, read + len(whole))
        same: dict[str, str] = {}  # most strings occur in all lines: one object for each
        for line in whole.splitlines():
            # A killed process or a full disk leaves a part of a line.
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                document = json.loads(line)
                key, parts = document["key"], document["parts"]
                if is_key(key) and all(isinstance(text, str) for text in parts.values()):
                    parts = {same.setdefault(n, n): same.setdefault(t, t) for n, t in parts.items()}
                    known.add(key, parts, float(document.get("created", 0.0)))


def _line_of(entry: Entry) -> str:
    document = {"key": entry.key, "parts": dict(entry.parts), "created": entry.created}
    return json.dumps(document, separators=(",", ":"))
