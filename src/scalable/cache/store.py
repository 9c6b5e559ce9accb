"""`ResultStore`: results of earlier tasks, as files of a directory or as objects of a bucket.

Layout: ``results-2/<function>/<inputs>-<key>``, in which ``<inputs>`` is a digest of the arguments.
So the results of a function, and those with equal arguments, are found by listing one directory:
there is no index and no lock, and several machines may share the directory over NFS.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import random
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from scalable.cache.entries import (
    READING,
    Buffer,
    Entry,
    EntryReader,
    Function,
    Unreadable,
    check_own,
    make_own,
    make_private,
    packed,
    pieces_of,
    read_header,
    read_result,
    touched,
)
from scalable.cache.files import FileDigests
from scalable.cache.key import CallKey
from scalable.errors import ManifestError, ScalableError
from scalable.storage import Storage, absolute_url, scheme_of, url_fault
from scalable.units import counted, format_bytes

logger = logging.getLogger("scalable.cache")

_T = TypeVar("_T")

#: Directory of the results. Other layouts have other names, so that releases do not mix them up.
LAYOUT: Final = "results-2"
_ENTRY = re.compile(rf"{LAYOUT}/[^/]+/([0-9a-f]{{16}})-([0-9a-f]{{64}})")
#: Prefix of the names of files that are being written.
_TEMPORARY: Final = "."
_SAFE = re.compile(r"\w[\w.-]{0,149}", re.ASCII)
#: Shortest running time in seconds of a task whose result is forced to the disk: after a power
#: loss, other tasks run again sooner than a busy disk confirms their results.
FORCED_S: Final = 1.0
#: Seconds after a recorded use in which further uses of a result are not recorded.
USED_S: Final = 3600.0
#: Seconds after its last write for which a temporary file may still be in use.
LEFT_S: Final = 3600.0
#: Share of the limit that a process stores before it looks for results to remove.
SHARE: Final = 0.05


@lru_cache(maxsize=4096)
def folder_of(function: str) -> str:
    """Return the path of a function's results: with its name if that is safe in a file system."""
    if not _SAFE.fullmatch(function):
        function = blake2b(function.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{LAYOUT}/{function}"


def inputs_of(parts: Mapping[str, str]) -> str:
    """Return a digest of the arguments in a key's parts, as 16 hexadecimal digits."""
    given = sorted(f"{name} {text}" for name, text in parts.items() if name.startswith("argument:"))
    return blake2b("\n".join(given).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def path_of(key: CallKey) -> str:
    """Return the path of a result in its store."""
    return f"{folder_of(key.function)}/{inputs_of(key.parts)}-{key.digest}"


@dataclass(frozen=True)
class Stored:
    """File or object of a store. If it is a result, its path ends with the key."""

    #: Path from the store's directory.
    path: str
    #: Size in bytes.
    size: int
    #: Time of the last use in seconds since the epoch, by the clock of the file system.
    used: float

    @property
    def key(self) -> str:
        return self.path[-64:]


@dataclass(frozen=True)
class Found:
    """Stored result with its description."""

    entry: Entry
    _value: Any

    def value(self) -> Any:
        """Return the result, the same object at each call. Other callers do not share it."""
        return self._value


@dataclass(frozen=True)
class Usage:
    """Number of files of a store, and their size in bytes."""

    entries: int = 0
    size: int = 0

    @classmethod
    def of(cls, stored: Iterable[Stored]) -> Usage:
        sizes = [one.size for one in stored]
        return cls(len(sizes), sum(sizes))


@dataclass(frozen=True)
class Pruned:
    """Outcome of the removal of results."""

    #: Number of results that were removed because of their age or the size of the store.
    removed: int = 0
    #: Size of the removed results in bytes.
    size: int = 0
    #: Number of removed files of killed processes.
    leftovers: int = 0
    #: Number and size of the results that stay.
    left: Usage = Usage()
    #: Keys of the removed results.
    keys: tuple[str, ...] = ()


class ResultStore:
    """Results of earlier tasks by their cache keys.
    A damaged entry is a miss, and an unusable store leaves results unwritten: neither raises an
    error, and each is logged once. The store pickles as its URL, and is opened at the first use. In
    a directory, results are read only from files that only this user can change. In a bucket, the
    bucket's permissions decide: keep it private, since reading a result can run code of its writer.
    """

    def __init__(self, url: str | os.PathLike[str], limit: int | None = None) -> None:
        #: Absolute URL of the store.
        self.url = _absolute(url)
        #: Largest size in bytes, or None. Processes that store results remove those beyond it.
        self.limit = limit
        directory = None
        if scheme_of(self.url) == "file":
            directory = Path(self.url.removeprefix("file://"))
        self._place = _Bucket(self.url) if directory is None else _Directory(directory)
        #: Digests of files, stored next to the results if the store is a directory.
        self.file_digests = FileDigests(directory)
        self._is_prepared = False
        self._is_closed: bool | None = None
        self._unchecked: float | None = None
        self._long: tuple[str, float, list[Stored]] = ("", 0.0, [])
        self._faults: deque[tuple[str, str]] = deque(maxlen=100)
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str | os.PathLike[str], limit: int | None = None) -> ResultStore:
        """Return this process's store with a URL, creating a missing directory.
        Raises ManifestError for an invalid URL, and ProviderError if the library for the URL's
        scheme is missing. If the directory is not usable, logs a warning.
        """
        store = shared(_absolute(url), limit)
        store.check()
        return store

    def check(self) -> None:
        """Create a missing directory, or warn. Raises ProviderError as :meth:`open` does."""
        self._place.check()
        if isinstance(self._place, _Directory):  # a bucket is asked when a worker stores a result
            try:
                self._prepare()
            except OSError as error:
                self._not_cached(error)

    def __repr__(self) -> str:
        return f"ResultStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str, int | None]]:
        return shared, (self.url, self.limit)

    def get(
        self, key: CallKey, at_most: int | None = None, function: Function = None
    ) -> Found | None:
        """Return a key's result, or None if missing, unreadable or larger than ``at_most`` bytes.
        ``function`` provides the classes of the script on a worker.
        """
        path = path_of(key)

        def load(opened: _Opened) -> Found | None:
            header, begun = read_header(opened.source, opened.size, key.digest)
            if at_most is not None and header.entry.size > at_most:
                return None
            found = Found(header.entry, read_result(opened.source, header, begun, function))
            if abs(time.time() - opened.used) > USED_S:  # also if the clock was wrong at that time
                self._place.note_use(path)
            return found

        return self._read(path, load)

    def described(self, stored: Stored) -> Entry | None:
        """Return the description of a result, or None. The result itself may be damaged."""
        return self._read(
            stored.path,
            lambda opened: read_header(opened.source, opened.size, stored.key)[0].entry,
        )

    def put(
        self,
        key: CallKey,
        value: Any,
        *,
        cost_s: float,
        task: str = "",
        tag: str = "",
        run: str = "",
        replace: bool = True,
    ) -> Entry | None:
        """Store a result that took ``cost_s`` s. Return its entry, or warn and return None.
        Unless ``replace``, an existing result raises FileExistsError.
        """
        try:
            payload = packed(value)
        except Exception as error:  # noqa: BLE001 - methods of the user's classes take part
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            self._log_once(
                f"unpicklable {key.function}",
                f"results of {key.function} are not cached: a result of type {kind} cannot be "
                f"pickled: {type(error).__name__}: {error}; tasks continue",
            )
            return None
        entry = Entry(
            key=key.digest,
            parts=dict(key.parts),
            function=key.function,
            created=time.time(),
            cost_s=float(cost_s),
            size=payload.size,
            task=task,
            tag=tag,
            run=run,
            host=socket.gethostname(),
        )
        try:
            self._prepare()
            self._place.write(
                path_of(key), pieces_of(entry, payload), forced=cost_s >= FORCED_S, replace=replace
            )
        except (OSError, ScalableError) as error:
            if isinstance(error, FileExistsError) and not replace:
                raise
            self._not_cached(error)
            return None
        self._long = ("", 0.0, [])
        self._limit_size(payload.size)
        return entry

    def adopt(self, key: CallKey, other: ResultStore) -> None:
        """Take over a result of another directory, as a hard link or else as a copy.
        Raises FileExistsError if it exists here, FileNotFoundError if it is missing there,
        Unreadable if it is not this user's, and other kinds of OSError.
        """
        path, here, there = path_of(key), self._place, other._place
        assert isinstance(here, _Directory)
        assert isinstance(there, _Directory)
        self._prepare()
        try:
            here.link(path, there)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:  # another file system, or one without links
            logger.debug("the result %s... is copied, not linked: %s", key.digest[:12], error)
            with there.opened(path) as opened:
                data = opened.source.read(opened.size) or b""
                here.write(path, [data], replace=False)

    def earlier(self, key: CallKey, before: float) -> Entry | None:
        """Return the function's newest other result with equal arguments, or else its newest.
        Only results that were stored before a time (in seconds since 1970) count.
        """
        start = f"{folder_of(key.function)}/{inputs_of(key.parts)}-"
        others = [one for one in self._stored_of(key.function) if one.key != key.digest]
        equal = [one for one in others if one.path.startswith(start)]
        return self._newest(equal, key.function, before) or self._newest(
            others, key.function, before
        )

    def stored(self) -> Iterator[Stored]:
        """Iterate over all results, even unreadable ones."""
        return (one for one in self._place.files(LAYOUT) if _ENTRY.fullmatch(one.path))

    def remove(self, stored: Iterable[Stored]) -> int:
        """Remove results, and return their number. Their readers are not interrupted.
        Raises OSError.
        """
        return sum(self._place.remove(one.path) for one in stored)

    def discard(self, key: CallKey) -> None:
        """Remove a result that may be missing. Errors are ignored."""
        with suppress(OSError):
            self._place.remove(path_of(key))

    def prune(
        self, *, limit: int | None = None, max_age_s: float | None = None, dry_run: bool = False
    ) -> Pruned:
        """Remove the least recently used results, and files of killed processes.
        ``limit`` is the largest size of what stays in bytes, ``max_age_s`` the longest time since
        the last use in seconds. A dry run removes nothing and reports what would be removed. Raises
        OSError if the store cannot be changed.
        """
        try:
            now = self._place.now()
        except FileNotFoundError:  # the store was never used
            return Pruned()
        found = list(self._place.files(LAYOUT))
        stored = [one for one in found if _ENTRY.fullmatch(one.path)]
        gone = excess(stored, limit, None if max_age_s is None else now - max_age_s)
        left = [
            one
            for one in found
            if one.path.rpartition("/")[2].startswith(_TEMPORARY) and now - one.used > LEFT_S
        ]
        if not dry_run:
            self.remove(chain(gone, left))
        removed, before = Usage.of(gone), Usage.of(stored)
        return Pruned(
            removed=removed.entries,
            size=removed.size,
            leftovers=len(left),
            left=Usage(before.entries - removed.entries, before.size - removed.size),
            keys=tuple(sorted(one.key for one in gone)),
        )

    def of_other_layout(self) -> list[Stored]:
        """Return the files of a store that another release has made at this URL."""
        found = (self._place.files(folder) for folder in _OTHER_FOLDERS)
        return [one for one in chain.from_iterable(found) if _OTHER_LAYOUT.fullmatch(one.path)]

    def fault_of(self, key: CallKey) -> str | None:
        """Return why this process could not read a key's result lately, or None."""
        with self._lock:
            return next((reason for one, reason in self._faults if one == key.digest), None)

    def _newest(self, stored: list[Stored], function: str, before: float) -> Entry | None:
        """Return the newest result that was stored before a time, or None."""
        # A result that was last used before that time was stored before it too. Of the others,
        # those that were not used for longest are most likely to have been.
        stored.sort(key=lambda one: one.used)
        later = [one for one in stored if one.used >= before]
        first = stored[: len(stored) - len(later)]
        for one in islice(chain(reversed(first), later), _READ):
            entry = self.described(one)
            if entry is not None and entry.function == function and entry.created < before:
                return entry
        return None

    def _stored_of(self, function: str) -> list[Stored]:
        """Return the results of a function. A long list is used again for a while."""
        folder, began = folder_of(function), time.monotonic()
        known, until, stored = self._long
        if known == folder and began < until:
            return stored
        try:
            stored = [one for one in self._place.files(folder) if _ENTRY.fullmatch(one.path)]
        except (OSError, ScalableError) as error:
            logger.debug("could not list the results of %s: %s", function, error)
            return []
        if len(stored) > _LONG:
            now = time.monotonic()
            self._long = folder, now + _AGAIN * (now - began), stored
        return stored

    def _limit_size(self, stored: int) -> None:
        """Remove results beyond the limit, if this process has stored a share of it."""
        if self.limit is None:
            return
        with self._lock:
            if self._unchecked is None:
                # Processes that store less look in proportion to what they store.
                self._unchecked = random.random() * SHARE * self.limit  # noqa: S311 - no secret
            self._unchecked += stored
            if self._unchecked < SHARE * self.limit:
                return
            self._unchecked = 0.0
        try:
            pruned = self.prune(limit=self.limit)
        except (OSError, ScalableError) as error:
            logger.debug("could not reduce the results store: %s", error)
            return
        if pruned.removed:
            logger.info(
                "removed %s of %s from the results store, whose limit is %s",
                counted(pruned.removed, "result"),
                format_bytes(pruned.size),
                format_bytes(self.limit),
            )

    def _prepare(self) -> None:
        if self._is_prepared:
            return
        is_new = self._place.prepare()
        self._is_prepared = True
        if is_new and any(map(_OTHER_FOLDER.fullmatch, self._place.names("entries"))):
            logger.warning(
                "results that another release of scalable has stored in %s are not used; "
                "`scalable cache prune --store %s` removes them",
                self.url,
                self.url,
            )

    def _read(self, path: str, read: Callable[[_Opened], _T]) -> _T | None:
        """Return the result of ``read`` for an opened entry, or None. Report any failed read."""
        if self._is_closed is None:
            foreign = self._place.foreign()
            self._is_closed = foreign is not None
            if foreign is not None:
                self._not_cached(foreign)
        if self._is_closed:
            return None
        try:
            with self._place.opened(path) as opened:
                return read(opened)
        except FileNotFoundError:
            return None
        except Unreadable as error:
            fault = error
        except (OSError, ScalableError) as error:
            self._not_cached(error)
            return None
        with self._lock:
            self._faults.appendleft((path[-64:], fault.reason))
        self._log_once(
            fault.kind,
            f"the cached result {path[-64:][:12]}... in {self.url} {fault.reason}; it is not used "
            "(others of this kind are not logged)",
        )
        return None

    def _not_cached(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        text = f"results are not cached in {self.url}: {reason}; tasks continue"
        self._log_once("unusable", text)

    def _log_once(self, kind: str, text: str) -> None:
        with self._lock:
            if kind in self._logged:
                return
            self._logged.add(kind)
        logger.warning("%s", text)


#: Largest number of descriptions that one search for an earlier result reads.
_READ: Final = 32
#: Number of results from which a function's list is used again, and for how many times as long as
#: it took to make it.
_LONG: Final = 2000
_AGAIN: Final = 50
#: What other releases have stored at the same URL.
_OTHER_FOLDERS: Final = ("entries", "functions", "leases")
_OTHER_FOLDER = re.compile("[0-9a-f]{2}")
_OTHER_LAYOUT = re.compile(
    r"entries/([0-9a-f]{2})/(\1[0-9a-f]{62}|\.\1[0-9a-f]{14}\.[0-9a-f]{16})"
    r"|functions/[0-9a-f]{32}/([0-9a-f]{16}\.lines|[0-9]{13}-[0-9a-f]{64})"
    r"|leases/([0-9a-f]{64}(\.[0-9a-f-]+)?|\.owner\.[0-9a-f]{16})"
)

_opened: dict[str, ResultStore] = {}
_opening = threading.Lock()


def shared(url: str, limit: int | None = None) -> ResultStore:
    """Return the store that all users of a URL in this process share."""
    with _opening:
        if url not in _opened:
            _opened[url] = ResultStore(url)
        store = _opened[url]
        store.limit = store.limit if limit is None else limit
        return store


def excess(stored: Iterable[Stored], limit: int | None, before: float | None) -> list[Stored]:
    """Return the results last used before a time, and the least recently used beyond a limit."""
    ordered = sorted(stored, key=lambda one: (one.used, one.path))
    over = 0 if limit is None else sum(one.size for one in ordered) - limit
    gone = []
    for one in ordered:
        if over <= 0 and (before is None or one.used >= before):
            break
        gone.append(one)
        over -= one.size
    return gone


def _absolute(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    fault = url_fault(text)
    if fault is not None:
        raise ManifestError(f"the URL of the results store {fault.problem}", hint=fault.hint)
    return absolute_url(text, Path.cwd())


@dataclass(frozen=True)
class _Opened:
    """Entry that is open for reading, with its size in bytes and the time of its last use."""

    source: EntryReader
    size: int
    used: float


# Directory ----------------------------------------------------------------------------------------

_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Maximum number of pieces of one ``writev`` (IOV_MAX is at least 1024 on Linux).
_PIECES = 512
#: Number of attempts to use a folder that other processes may remove.
_ATTEMPTS: Final = 100


class _Descriptor:
    """Reader of a descriptor, faster than ``open`` for small entries. The caller closes it."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self, size: int, /) -> bytes:
        return os.read(self._number, size)

    def readinto(self, buffer: memoryview, /) -> int:
        return os.readv(self._number, [buffer])


class _Directory:
    """Directory of this user. fsspec's local files have neither owners nor exclusive writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._start = f"{root}{os.sep}"  # a string: a pathlib path takes 10 us to make

    def check(self) -> None:
        """Do nothing, since a directory needs no library."""

    def foreign(self) -> OSError | None:
        """Return an error if the directory is another user's, who could replace its files."""
        for path in (self.root, self.root / LAYOUT):
            try:
                owner = path.stat().st_uid
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                return error
            if owner not in (0, os.geteuid()):
                reason = f"{path} belongs to another user (uid {owner})"
                return PermissionError(errno.EPERM, reason)
        return None

    def prepare(self) -> bool:
        """Create missing directories, or raise OSError. Return whether there were no results."""
        is_new = not (self.root / LAYOUT).is_dir()
        make_own(self.root, restrict=False)  # it may have other files, as a project's directory has
        make_own(self.root / LAYOUT)
        return is_new

    @contextmanager
    def opened(self, path: str) -> Iterator[_Opened]:
        """Open an entry. Raises Unreadable unless it is a file that only this user can change."""
        try:
            descriptor = os.open(self._start + path, READING)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise Unreadable("foreign", "is not a regular file") from error
            raise
        try:
            status = os.fstat(descriptor)
            check_own(status)
            yield _Opened(_Descriptor(descriptor), status.st_size, status.st_mtime)
        finally:
            os.close(descriptor)

    def write(
        self, path: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry. A killed writer leaves a temporary file, not a partial entry.
        Unless ``forced``, a power failure may leave a damaged entry, which readers recognise.
        Unless ``replace``, only one of several writers succeeds, and the others get
        FileExistsError. A failed write raises OSError and leaves nothing.
        """
        target, folder = self._start + path, self._start + path.rpartition("/")[0]
        temporary = f"{folder}{os.sep}{_TEMPORARY}{secrets.token_hex(16)}"
        try:
            descriptor = _within(folder, lambda: os.open(temporary, _WRITING, 0o600))
            try:
                _write_all(descriptor, pieces)
                if forced:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)  # over NFS, this may report a full disk
            if replace:
                os.rename(temporary, target)  # noqa: PTH104 - texts, as above
            else:  # unlike a rename, a link fails where there is an entry
                os.link(temporary, target)
                os.unlink(temporary)  # noqa: PTH108
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise

    def link(self, path: str, other: _Directory) -> None:
        """Add another directory's entry as a hard link to the same file."""
        source, target = other._start + path, self._start + path
        os.stat(source, follow_symlinks=False)  # noqa: PTH116 - most have none: none is made
        folder = target.rpartition("/")[0]
        _within(folder, lambda: os.link(source, target, follow_symlinks=False))

    def note_use(self, path: str) -> None:
        """Set an entry's time of last use (its file's modification time) to now."""
        with suppress(OSError):  # a read-only store keeps no order of use
            os.utime(self._start + path)

    def names(self, folder: str) -> list[str]:
        with suppress(OSError):
            return os.listdir(self._start + folder)  # noqa: PTH208
        return []

    def files(self, folder: str) -> Iterator[Stored]:
        """Iterate over the files below a folder, of any owner. Links are not followed."""
        try:
            with os.scandir(self._start + folder) as found:
                items = list(found)
        except OSError:
            return
        for item in items:
            path = f"{folder}/{item.name}"
            with suppress(OSError):
                if item.is_dir(follow_symlinks=False):
                    yield from self.files(path)
                else:
                    status = item.stat(follow_symlinks=False)
                    yield Stored(path, status.st_size, status.st_mtime)

    def remove(self, path: str) -> bool:
        """Delete a file and directories that it leaves empty. Return whether it existed."""
        try:
            os.unlink(self._start + path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        with suppress(OSError):
            for parent in Path(path).parents[:-1]:
                (self.root / parent).rmdir()
        return True

    def now(self) -> float:
        """Return epoch seconds by the file server's clock. Raises OSError if read-only."""
        return touched(self.root / "clock")


def _within(folder: str, act: Callable[[], _T]) -> _T:
    """Do something in a folder that is missing at first, or that others remove when it is empty."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return act()
        with suppress(FileNotFoundError):
            make_private(Path(folder))
    return act()


def _write_all(descriptor: int, pieces: Sequence[Buffer]) -> None:
    """Write pieces together, without copies."""
    views = (memoryview(piece) for piece in pieces)
    waiting = deque(view for view in views if view.nbytes)
    while waiting:
        # One call writes at most 2 GiB, and less after a signal or on a full disk.
        written = os.writev(descriptor, list(islice(waiting, _PIECES)))
        while waiting and written >= waiting[0].nbytes:
            written -= waiting.popleft().nbytes
        if written:
            waiting[0] = waiting[0][written:]


# Bucket -------------------------------------------------------------------------------------------

#: Size in bytes from which an entry is uploaded in parts, so that it is not copied as a whole.
LARGE: Final = 64 << 20
#: Names of an object's time in different file systems.
_TIMES: Final = ("LastModified", "updated", "mtime", "created")


class _Bucket:
    """Objects below a prefix. Uses are not recorded: only writing changes an object's time."""

    def __init__(self, url: str) -> None:
        self._storage = Storage(url)

    def check(self) -> None:
        """Raise ProviderError if the library for the URL is missing."""
        _ = self._storage.fs

    def foreign(self) -> OSError | None:
        """Return None, since the bucket's permissions decide who can read and write."""

    def prepare(self) -> bool:
        """Return whether there are no results."""
        return not self.names(LAYOUT)

    @contextmanager
    def opened(self, path: str) -> Iterator[_Opened]:
        """Read an object, or raise FileNotFoundError or another OSError."""
        with translated():
            data: bytes = self._storage.fs.cat_file(self._storage.path(path))
        yield _Opened(io.BytesIO(data), len(data), time.time())

    def write(
        self, path: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry. An object appears as a whole. Failures raise OSError."""
        del forced
        assert replace, "objects cannot be written exclusively"
        with translated():
            fs, whole = self._storage.fs, self._storage.path(path)
            if sum(memoryview(piece).nbytes for piece in pieces) < LARGE:
                fs.pipe_file(whole, b"".join(pieces))
                return
            file = fs.open(whole, "wb")
            try:
                for piece in pieces:
                    file.write(piece)
            except BaseException:
                with suppress(Exception):  # an incomplete upload is not an object
                    file.discard()
                raise
            file.close()

    def note_use(self, path: str) -> None:
        """Do nothing, since an object's time changes only when it is written."""

    def names(self, folder: str) -> list[str]:
        with suppress(OSError), translated():
            return [path.rpartition("/")[2] for path in self._storage.ls(folder)]
        return []

    def files(self, folder: str) -> Iterator[Stored]:
        """Iterate over the objects below a prefix."""
        with translated():
            fs = self._storage.fs
            fs.invalidate_cache()
            found: Mapping[str, Mapping[str, Any]] = fs.find(
                self._storage.path(folder), detail=True
            )
        top = self._storage.path().strip("/")
        for path, facts in found.items():
            inner = path.strip("/").removeprefix(top).strip("/")
            yield Stored(inner, int(facts.get("size") or 0), _time_of(facts))

    def remove(self, path: str) -> bool:
        try:
            with translated():
                if not self._storage.exists(path):
                    return False
                self._storage.fs.rm_file(self._storage.path(path))
        except FileNotFoundError:
            return False
        return True

    def now(self) -> float:
        """Return seconds since the epoch by the clock of this machine."""
        return time.time()


@contextmanager
def translated() -> Iterator[None]:
    """Raise any error of a store's library as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _time_of(facts: Mapping[str, Any]) -> float:
    """Return an object's modification time in epoch seconds, or 0 if it is not reported."""
    for name in _TIMES:
        value = facts.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
