"""`Lease`: the right of one process at a time to compute a result.

A lease is a link ``leases/<key>``, which unlike a lock works over NFS. All leases of a process for
one owner are links to one file, so touching it renews them all.
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

from scalable.cache.entries import is_key
from scalable.cache.own_files import READING, TEMPORARY, touched
from scalable.liveness import identify_process, is_alive

logger = logging.getLogger("scalable.cache")

#: Device and inode of a file, and its time in ns.
_Seen: TypeAlias = tuple[tuple[int, int], int]

#: Errors of a directory that accepts no file: it is full or read-only.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
#: Seconds without renewal after which a lease is stale. Over NFS, a file's time may become visible
#: late, and a process may be paused for a while.
STALE_S = 60.0
#: Largest number of seconds between two renewals.
RENEWED_S = 10.0
#: Largest number of leases of other processes that are watched at once.
_WATCHED = 10_000
#: Number of processes that may have died in succession while they took over a stale lease.
_TAKERS = 4


@dataclass(frozen=True)
class Holder:
    """Process that holds a lease."""

    #: Name of the computation, for messages.
    owner: str
    host: str
    process: int


class Lease:
    """Right to compute one result, until it is released or its process exits."""

    def __init__(
        self,
        key: str,
        is_held: Callable[[], bool] | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.key = key
        #: True if no other process can have the lease at the same time.
        self.excludes = is_held is not None
        self._is_held = is_held
        self._release = release

    def is_held(self) -> bool:
        """Return whether the lease is still ours. Others may take it if this process pauses."""
        return self._is_held is not None and self._is_held()

    def release(self) -> None:
        """Release the lease. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass
class _Owned:
    """File that all of this process's leases for one owner link to."""

    path: Path
    inode: tuple[int, int]
    touched: float
    leases: set[Path]


class Leases:
    """Leases of one store directory in this process. All processes must use one ``stale_s``."""

    def __init__(
        self, directory: Path, *, stale_s: float = STALE_S, renewed_s: float = RENEWED_S
    ) -> None:
        self._directory = directory / "leases"
        self._clock = directory / "clock"
        self._stale_s = stale_s
        self._renewed_s = renewed_s
        self._owned: dict[str, _Owned] = {}
        #: Identity and time of each watched lease, and when this process first observed both.
        self._watched: dict[Path, tuple[_Seen, float]] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._renewing: threading.Thread | None = None

    def take(self, key: str, owner: str) -> Lease | None:
        """Return the lease of a key, or None if another task has it.
        ``owner`` is shown to waiting processes. Raises OSError if the directory is not writable or
        does not support links.
        """
        path = self._directory / key
        if self._process != os.getpid():
            # After a fork, the parent's leases are not ours, and one of its threads may have the
            # lock.
            self._owned, self._process, self._renewing = {}, os.getpid(), None
            self._lock = threading.Lock()
        with self._lock:
            owned = self._fresh(owner)
            try:
                is_ours = self._acquire(path, owned, _TAKERS)
            except FileNotFoundError:  # another process removed the owner's file
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
        """Return whether a key has no lease, or one that its holder no longer renews."""
        path = self._directory / key
        found = _seen(path)
        return found is None or self._is_stale(path, found)

    def holder(self, key: str) -> Holder | None:
        """Return the lease holder of a key, or None if there is none or it is unknown."""
        document = _document(self._directory / key)
        try:
            process = document["process"]
            return Holder(str(document["owner"]), str(process["host"]), int(process["pid"]))
        except (TypeError, KeyError, ValueError):
            return None

    def remove_leftovers(self, *, dry_run: bool = False) -> int:
        """Delete files of processes that exited long ago, and return their number."""
        removed = 0
        with suppress(OSError):
            before = touched(self._clock) - 10 * self._stale_s
            for item in list(os.scandir(self._directory)):
                # A stale lease itself is left to the process that takes it over, lest two have it.
                if is_key(item.name):
                    continue
                with suppress(OSError):
                    if item.stat(follow_symlinks=False).st_mtime < before:
                        if not dry_run:
                            os.unlink(item.path)  # noqa: PTH108 - an entry of scandir
                        removed += 1
        return removed

    def _fresh(self, owner: str) -> _Owned:
        """Return an owner's file, renewed recently enough for new links."""
        owned = self._owned.get(owner)
        if owned is not None:
            if time.monotonic() - owned.touched < self._renewed_s:
                return owned
            with suppress(OSError):
                os.utime(owned.path)
                owned.touched = time.monotonic()
                return owned
            if owned.leases:
                logger.debug(
                    "the lease file %s no longer exists; other processes will take its leases over",
                    owner,
                )
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
        """Turn a free or stale path into a link to an owner's file. Return False if it is taken."""
        if _linked(owned.path, path):
            return True
        found = _seen(path)
        if found is None:  # just released: one more attempt, not a loop
            return _linked(owned.path, path)
        inode, modified = found
        if inode == owned.inode:
            # Another task of this process has it, or the server's reply was lost and the repeated
            # request failed.
            return path not in owned.leases
        taking = path.with_name(f"{path.name}.{inode[1]:x}-{modified:x}")
        if not (
            takers and self._is_stale(path, found) and self._acquire(taking, owned, takers - 1)
        ):
            return False
        # Exactly one process has this name, which contains the identity of the stale lease. It may
        # replace that lease only, which must be unchanged.
        if _seen(path) == found:
            taking.rename(path)
            logger.debug("took over the lease %s, which was not renewed", path.name[:12])
            return True
        with suppress(OSError):
            taking.unlink()
        return False

    def _is_stale(self, path: Path, found: _Seen) -> bool:
        """Return whether a lease is no longer renewed, as far as this process can tell."""
        # Only the file server's clock counts, except for processes of this machine that have
        # exited. If that clock was set back, a lease that stays unchanged for as long is stale too.
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
        """Renew this process's leases in a thread, until it has had none for a while."""
        held: list[_Owned] = []
        while True:
            had = bool(held)
            # Nothing wakes this thread: a process that runs many short tasks would pay for each.
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
                    logger.debug("could not renew leases: %s", error)
                owned.touched = time.monotonic()


def _linked(source: Path, path: Path) -> bool:
    """Link a file to a path, or return False if the path exists."""
    try:
        os.link(source, path)
    except FileExistsError:
        return False
    return True


def _document(path: Path) -> Any:
    """Return the document in a lease's file, or None if unreadable."""
    with suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def _has_ended(document: Any) -> bool:
    """Return whether the process that wrote a document is known to have exited."""
    process = document.get("process") if isinstance(document, dict) else None
    if not isinstance(process, dict) or process.get("boot_id") is None:
        return False
    # Another machine may have the same host name, but not the same boot id.
    return process["boot_id"] == identify_process()["boot_id"] and is_alive(process) is False


def _seen(path: Path) -> _Seen | None:
    """Return a file's identity and modification time (ns), or None. Opening bypasses NFS caches."""
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
