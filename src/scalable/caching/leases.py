"""`Lease`: the right to compute a result, which one process at a time has.

All processes that share a store take part. A lease is a file `leases/<key>`, made by ``link``: it
works over NFS, where locks do not. All leases of a process for one owner are links to one file, and
one touch of that file renews them all. A process that dies stops renewing. A lease is stale by the
clock of the file server alone: by the time of the file, and the time that a file touched there now
gets. Where that clock was set back, whoever waits takes a lease that it saw unchanged for as long.
The lease of a process that has ended on this machine is stale at once.

A stale lease is taken over by exactly one: whoever links a file whose name contains the identity of
the stale one, and then finds that unchanged, replaces it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

from scalable.caching.entries import is_key
from scalable.caching.own_files import READING, TEMPORARY, touched
from scalable.liveness import identify_process, is_alive

logger = logging.getLogger("scalable.caching")

#: Identity of a file, and its time in ns.
_Seen: TypeAlias = tuple[tuple[int, int], int]

#: Errors of a directory that takes no file at all: it is full, or read-only.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: Seconds without renewal after which a lease is stale. Machines may see the time of a file late
#: over NFS, and a process may be stopped for a while.
STALE_S = 60.0
#: Largest number of seconds between two renewals.
RENEWED_S = 10.0
#: Largest number of leases of others that are watched at once.
_WATCHED = 10_000
#: Number of takers that may have died one after the other while they took a stale lease over.
_TAKERS = 4


@dataclass(frozen=True)
class Holder:
    """The process that has a lease.

    Attributes
    ----------
    owner
        Name of what computes.
    host
        Name of its machine.
    process
        Its process id there.
    """

    owner: str
    host: str
    process: int


class Lease:
    """The right to compute one result. It lasts until it is released, or its process ends.

    Parameters
    ----------
    key
        Key of the call.
    is_held, release
        What the methods of these names do; None for a lease that excludes nobody.

    Attributes
    ----------
    key
        Key of the call.
    excludes
        Whether no other process can have the lease at the same time.
    """

    def __init__(
        self,
        key: str,
        is_held: Callable[[], bool] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        self.excludes = is_held is not None
        self._is_held = is_held
        self._release = release

    def is_held(self) -> bool:
        """Return whether nobody else took the lease over.

        That can happen to a process that was stopped for longer than a lease lasts.
        """
        return self._is_held is not None and self._is_held()

    def release(self) -> None:
        """Give the lease back. A second time does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass
class _Owned:
    """The file that all leases of this process for an owner are links to."""

    path: Path
    inode: tuple[int, int]
    touched: float
    leases: set[Path]


class Leases:
    """The leases of one directory, from one process.

    Parameters
    ----------
    directory
        Directory of the store.
    stale_s
        Seconds without renewal after which a lease is stale. The same for all processes.
    renewed_s
        Largest number of seconds between two renewals.
    """

    def __init__(
        self, directory: Path, *, stale_s: float = STALE_S, renewed_s: float = RENEWED_S
    ) -> None:
        self._directory = directory / "leases"
        self._clock = directory / "clock"
        self._stale_s = stale_s
        self._renewed_s = renewed_s
        self._owned: dict[str, _Owned] = {}
        #: Path of a lease -> its identity and time, and when this process saw them first.
        self._watched: dict[Path, tuple[_Seen, float]] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._renewing: threading.Thread | None = None

    def take(self, key: str, owner: str) -> Lease | None:
        """Return the lease of a key; None if another call has it.

        Parameters
        ----------
        key
            Key of the call.
        owner
            Name for messages of others that wait.

        Raises
        ------
        OSError
            When the directory cannot be written, or does not know links.
        """
        path = self._directory / key
        if self._process != os.getpid():
            # Forked: what the parent has is not ours, and one of its threads may have the lock.
            self._owned, self._process, self._renewing = {}, os.getpid(), None
            self._lock = threading.Lock()
        with self._lock:
            owned = self._fresh(owner)
            try:
                is_ours = self._acquire(path, owned, _TAKERS)
            except FileNotFoundError:  # somebody removed the file of this owner
                del self._owned[owner]
                owned = self._fresh(owner)
                is_ours = self._acquire(path, owned, _TAKERS)
            if not is_ours:
                return None
            owned.leases.add(path)
            if self._renewing is None:
                self._renewing = threading.Thread(
                    target=self._renew, name="scalable-leases", daemon=True
                )
                self._renewing.start()
        return Lease(key, lambda: _inode(path) == owned.inode, lambda: self._release(path, owned))

    def is_free(self, key: str) -> bool:
        """Return whether nobody has the lease of a key, or who had it stopped renewing it."""
        path = self._directory / key
        found = _seen(path)
        return found is None or self._is_stale(path, found)

    def holder(self, key: str) -> Holder | None:
        """Return who has the lease of a key; None if nobody has, or it is not known."""
        document = _document(self._directory / key)
        try:
            process = document["process"]
            return Holder(str(document["owner"]), str(process["host"]), int(process["pid"]))
        except (TypeError, KeyError, ValueError):
            return None

    def remove_leftovers(self) -> int:
        """Remove the leases and files of processes that ended long ago; return their number."""
        removed = 0
        with suppress(OSError):
            before = touched(self._clock) - 10 * self._stale_s
            for item in list(os.scandir(self._directory)):
                # A stale lease itself is left to whoever takes it over, lest two have it.
                if is_key(item.name):
                    continue
                with suppress(OSError):
                    if item.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(item.path)  # noqa: PTH108 - an entry of scandir
                        removed += 1
        return removed

    def _fresh(self, owner: str) -> _Owned:
        """Return the file of an owner, renewed so lately that a link to it is not stale."""
        owned = self._owned.get(owner)
        if owned is not None:
            if time.monotonic() - owned.touched < self._renewed_s:
                return owned
            with suppress(OSError):
                os.utime(owned.path)
                owned.touched = time.monotonic()
                return owned
            if owned.leases:
                logger.debug("the file of the leases of %s is gone: they will be taken over", owner)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / f"{TEMPORARY}owner.{secrets.token_hex(8)}"
        document = {"owner": owner, "process": identify_process()}
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            json.dump(document, file)
            status = os.fstat(descriptor)
        owned = _Owned(path, (status.st_dev, status.st_ino), time.monotonic(), set())
        self._owned[owner] = owned
        return owned

    def _acquire(self, path: Path, owned: _Owned, takers: int) -> bool:
        """Make a path a link to the file of an owner, if it is free or stale."""
        if _linked(owned.path, path):
            return True
        found = _seen(path)
        if found is None:  # released meanwhile: one more attempt, not a loop
            return _linked(owned.path, path)
        inode, modified = found
        if inode == owned.inode:
            # Another call of this process has it; or the answer of the server was lost, and what
            # failed was the repeated request.
            return path not in owned.leases
        taking = path.with_name(f"{path.name}.{inode[1]:x}-{modified:x}")
        if not (
            takers and self._is_stale(path, found) and self._acquire(taking, owned, takers - 1)
        ):
            return False
        # Who has this name may replace that lease and no other: it must be the same still.
        if _seen(path) == found:
            taking.rename(path)
            logger.debug("the lease %s was not renewed, and is taken over", path.name[:12])
            return True
        with suppress(OSError):
            taking.unlink()
        return False

    def _is_stale(self, path: Path, found: _Seen) -> bool:
        """Return whether nobody will renew a lease any more, as far as can be known."""
        if touched(self._clock) - found[1] / 1e9 > self._stale_s or _has_ended(_document(path)):
            return True
        now = time.monotonic()
        if len(self._watched) >= _WATCHED:
            self._watched.clear()
        seen, since = self._watched.setdefault(path, (found, now))
        if seen != found:
            self._watched[path] = found, now
            return False
        return now - since > self._stale_s

    def _release(self, path: Path, owned: _Owned) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            if path not in owned.leases:
                return
            owned.leases.discard(path)
            with suppress(OSError):
                if _inode(path) == owned.inode:
                    path.unlink()

    def _renew(self) -> None:
        """Renew the leases of this process, until it has had none for a while."""
        held: list[_Owned] = []
        while True:
            had = bool(held)
            # Nobody wakes this thread: a process that runs many short calls would pay for each.
            time.sleep(self._renewed_s / 2)
            with self._lock:
                held = [owned for owned in self._owned.values() if owned.leases]
                if not (held or had):
                    self._renewing = None
                    return
            for owned in held:
                if time.monotonic() - owned.touched < self._renewed_s / 2:
                    continue
                try:
                    os.utime(owned.path)
                except OSError as error:
                    logger.debug("leases are not renewed: %s", error)
                owned.touched = time.monotonic()


def _linked(source: Path, path: Path) -> bool:
    """Link a file to a path, and return whether nothing had that name."""
    try:
        os.link(source, path)
    except FileExistsError:
        return False
    return True


def _document(path: Path) -> Any:
    """Return what the file of a lease says of its holder; None if it says nothing."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _has_ended(document: Any) -> bool:
    """Return whether the process that wrote a document is known to have ended."""
    process = document.get("process") if isinstance(document, dict) else None
    if not isinstance(process, dict) or process.get("boot_id") is None:
        return False
    # Another machine may have the same name: only one that runs since the same start is this one.
    return process["boot_id"] == identify_process()["boot_id"] and is_alive(process) is False


def _seen(path: Path) -> _Seen | None:
    """Return the identity and the time in ns of a file; None if there is none.

    It is opened: over NFS that asks the server, where ``stat`` may answer from a cache.
    """
    try:
        descriptor = os.open(path, READING)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino), status.st_mtime_ns
    finally:
        os.close(descriptor)


def _inode(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = _seen(path)
        return found[0] if found else None
    return None
