"""`Checkpoints`: directories in which calls keep what they have done so far, try by try.

::

    checkpoints/<cluster>/<call>/<number of the try>-<random>/
    checkpoints/remembered/<key>/<number of the try>-<random>/

They lie on the file system that the workers share, below a directory that belongs to this user.
A try is given the directory of the try before it by a rename: it has the state, and the earlier
try, if it runs still, finds that its path is gone. So two tries never write by one path, and of
two at once the later one wins. No lock is needed, which NFS might break.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from scalable.caching.folders import Folder
from scalable.caching.leases import Lease, Leases
from scalable.caching.own_files import touched
from scalable.errors import ClusterError
from scalable.settings import results_dir
from scalable.storage import scheme_of

#: Group of the checkpoints of calls whose results are remembered, whatever their cluster.
REMEMBERED: Final = "remembered"
_DIRECTORY: Final = "checkpoints"
#: Start of the names of directories that are being made or removed.
_HIDDEN: Final = "."
_TRY = re.compile(r"(\d+)-[0-9a-f]{16}")
#: Number of attempts to get a directory that other tries take meanwhile.
_ATTEMPTS: Final = 20


def checkpoint_directory(url: str | None) -> Path:
    """Return the directory in which a store of results keeps checkpoints.

    Parameters
    ----------
    url
        URL of the store, or None for the user's own. Beside a bucket, it is the user's own too.
    """
    if url is not None and scheme_of(url) == "file":
        return Path(url.removeprefix("file://"))
    return results_dir()


@dataclass(frozen=True)
class Kept:
    """Checkpoints and their size in bytes."""

    number: int = 0
    size: int = 0


class Checkpoint:
    """The directory of one try of a call.

    Parameters
    ----------
    path
        The directory.
    lease
        What tells others that it is in use.
    """

    def __init__(self, path: Path, lease: Lease) -> None:
        self._path, self._lease = path, lease

    @property
    def path(self) -> Path:
        """The directory.

        Raises
        ------
        ClusterError
            When a later try of the call has it.
        """
        if not self._path.is_dir():
            raise ClusterError(
                f"the checkpoint {self._path} is no longer that of this try: a later try of the "
                "call has taken it over, or it was removed",
                hint="let the call end: its worker was believed to be lost",
            )
        return self._path

    def end(self, *, succeeded: bool) -> None:
        """Remove the directory if the call has succeeded; keep it for the next try otherwise.

        What a later try has taken over is left to it.
        """
        if succeeded:
            _removed(self._path, self._path.parents[2])
            with suppress(OSError):  # a later try is in it
                self._path.parent.rmdir()
        self._lease.release()


class Checkpoints:
    """The checkpoints in one directory of results.

    Parameters
    ----------
    directory
        Directory of results.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._root = directory / _DIRECTORY
        self._leases = Leases(directory)

    def prepare(self, group: str) -> None:
        """Make the directory of a group of calls, for this user alone.

        Raises
        ------
        ClusterError
            When it cannot be made, or the directory of results belongs to another user.
        """
        Folder(self._directory).prepare()
        try:
            (self._root / group).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root.chmod(0o700)
        except OSError as error:
            raise ClusterError(
                f"no checkpoints can be kept in {self._root}: {error.strerror}",
                hint="name a directory in which you may write as local_cache of the project",
            ) from error

    def begin(self, group: str, call: str) -> Checkpoint:
        """Return the directory of a new try of a call, with what the try before it has left.

        Parameters
        ----------
        group
            A group that was prepared, perhaps by another process.
        call
            What all tries of the call have in common, and no other call of the group.

        Raises
        ------
        ClusterError
            When the group is not there: this process sees another file system.
        """
        if not (self._root / group).is_dir():
            raise ClusterError(
                f"the directory of checkpoints {self._root} is not there on {socket.gethostname()}",
                hint="name a directory that all workers see as local_cache of the project, and "
                "mount it where a component has an image",
            )
        place = self._root / group / sha256(call.encode("utf-8", "surrogatepass")).hexdigest()
        token = secrets.token_hex(8)
        fault: OSError | None = None
        for _ in range(_ATTEMPTS):
            number, latest = max(_tries(place), default=(0, None))
            own = place / f"{number + 1}-{token}"
            try:
                if latest is None:
                    self._make(place, own.name)
                else:
                    latest.rename(own)
            except OSError as error:  # mostly: another try has been faster, or has succeeded
                fault = error
            # Over NFS, the answer to a rename may be lost, and the repetition fail.
            if own.is_dir():
                return Checkpoint(own, self._lease(own))
        raise ClusterError(
            f"the call gets no checkpoint {place}: {fault}",
            hint="see whether the disk is full, and which clusters run the call",
        ) from fault

    def remove(self, group: str) -> None:
        """Remove all checkpoints of a group."""
        if (self._root / group).is_dir():
            _removed(self._root / group, self._root)

    def collect(self, max_age_s: float, *, dry_run: bool = False) -> Kept:
        """Remove the checkpoints that nobody uses and that did not change for a time.

        Parameters
        ----------
        max_age_s
            Seconds since the last change in a directory, by the clock of its file server.
        dry_run
            Whether nothing is removed.

        Raises
        ------
        OSError
            When the directory cannot be changed.
        """
        if not self._root.is_dir():
            return Kept()
        before = touched(self._directory / "clock") - max_age_s
        number = size = 0
        for place in [*self._root.glob(f"[!{_HIDDEN}]*/*"), *self._root.glob(f"{_HIDDEN}*")]:
            found, changed = _measured(place)
            used = any(not self._leases.is_free(_lease_key(path)) for _, path in _tries(place))
            if used or changed >= before:
                continue
            number, size = number + 1, size + found
            if not dry_run:
                _removed(place, self._root)
                with suppress(OSError):  # the group of a cluster that has ended
                    place.parent.rmdir()
        return Kept(number, size)

    def _make(self, place: Path, name: str) -> None:
        """Make the directory of a call with that of its first try in it; raise OSError if one is.

        Both appear at once: no two tries can be the first.
        """
        new = self._root / f"{_HIDDEN}{secrets.token_hex(8)}"
        new.mkdir(mode=0o700)
        try:
            (new / name).mkdir(mode=0o700)
            new.rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _lease(self, path: Path) -> Lease:
        key = _lease_key(path)
        try:
            return self._leases.take(key, f"{socket.gethostname()}:{os.getpid()}") or Lease(key)
        except OSError:  # its file system knows no links
            return Lease(key)


class RunningCall:
    """A call whose result is remembered, while it runs: its checkpoint has the key of the call.

    Parameters
    ----------
    key
        Key of the call.
    url
        URL of the store of its result.
    """

    def __init__(self, key: str, url: str) -> None:
        self.key, self.url = key, url
        self._checkpoint: Checkpoint | None = None

    def path(self, begin: Callable[[], Checkpoint]) -> Path:
        """Return the directory of this try; the first time it is begun."""
        if self._checkpoint is None:
            self._checkpoint = begin()
        return self._checkpoint.path

    def end(self, *, succeeded: bool) -> None:
        """Remove the directory, or keep it; see :meth:`Checkpoint.end`."""
        if self._checkpoint is not None:
            self._checkpoint.end(succeeded=succeeded)


_running: ContextVar[RunningCall | None] = ContextVar("scalable_remembered_call", default=None)


def remembered_call() -> RunningCall | None:
    """Return the innermost call in this thread whose result is remembered, or None."""
    return _running.get()


@contextmanager
def running_remembered(key: str, url: str) -> Iterator[None]:
    """Let the code in a ``with`` block be a call whose result is remembered."""
    call = RunningCall(key, url)
    token = _running.set(call)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        _running.reset(token)
        call.end(succeeded=succeeded)


def _tries(place: Path) -> list[tuple[int, Path]]:
    """Return number and path of the directories of a call, the latest try last."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = ((_TRY.fullmatch(name), place / name) for name in os.listdir(place))  # noqa: PTH208
        return sorted((int(match[1]), path) for match, path in found if match)
    return []


def _lease_key(path: Path) -> str:
    return sha256(f"checkpoint {path.parent.name}/{path.name}".encode()).hexdigest()


def _removed(path: Path, root: Path) -> None:
    """Remove a directory so that nobody finds a part of it; do nothing if it is gone."""
    gone = root / f"{_HIDDEN}{secrets.token_hex(8)}"
    with suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _measured(place: Path) -> tuple[int, float]:
    """Return size in bytes and time of the last change of a directory with all that is in it."""
    size, changed = 0, 0.0
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118
            with suppress(OSError):
                status = os.lstat(path)
                size += 0 if path == folder else status.st_size
                changed = max(changed, status.st_mtime)
    return size, changed
