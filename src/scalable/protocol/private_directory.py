"""Directories of server nodes that other users cannot enter, replace or create in advance.

Dask puts a node's local directory first on ``sys.path``. Any user could create Dask's default,
below ``/tmp/dask-scratch-space``, and put modules into it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from scalable.errors import ClusterError
from scalable.protocol.code import is_trusted, is_unmapped

_PREFIX = "scalable-node"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_parent() -> Path:
    """Return Dask's ``temporary-directory``, or else Python's (``TMPDIR``)."""
    import dask

    return Path(dask.config.get("temporary-directory") or tempfile.gettempdir()).expanduser()


def scratch_parent(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the parent of scratch directories. Raises ClusterError if others can replace it."""
    parent = Path(given or default_parent())
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    parent = parent.resolve()
    for directory in (parent, *parent.parents):
        reason = _replaceable(directory.stat())
        if reason is not None:
            below = "" if directory == parent else f", which holds {parent},"
            raise ClusterError(
                f"scratch directory {directory}{below} {reason}: another user could replace the "
                "files of workers and schedulers in it, and run code as this user",
                hint="set TMPDIR, or temporary-directory in Dask's configuration, to a directory "
                "of your own with mode 700",
            )
    return parent


def _replaceable(status: os.stat_result) -> str | None:
    """Return why others could rename a directory's content, or None. Project groups are trusted."""
    if status.st_mode & _WRITABLE_BY_OTHERS and not is_trusted(status.st_uid):
        return f"belongs to another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return f"can be changed by every user (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def make_private(prefix: str, parent: str | os.PathLike[str] | None = None) -> Path:
    """Create a private directory. Raises ClusterError if another user could replace it."""
    path = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=scratch_parent(parent)))
    check_private(path)
    return path


def check_private(path: str | os.PathLike[str]) -> None:
    """Raise ClusterError unless a directory belongs to this user, and only they may change it."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        reason = "is not a directory"
    elif status.st_uid != os.geteuid() and not is_unmapped(status.st_uid):
        reason = f"belongs to another user (uid {status.st_uid})"
    elif status.st_mode & _WRITABLE_BY_OTHERS:
        reason = f"can be changed by other users (mode {stat.S_IMODE(status.st_mode):o})"
    else:
        return
    raise ClusterError(
        f"scratch directory {path} {reason}, so it is not used",
        hint="remove it, or use a directory of your own with mode 700",
    )


class PrivateDirectory:
    """Private directory that is locked while in use, and removed after that."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        self.path, self._lock = _make_locked(parent)
        self._finalizer = weakref.finalize(self, _remove, self.path, self._lock, os.getpid())
        _remove_stale_once(self.path.parent)

    def release(self) -> None:
        """Remove the directory, and its entries from ``sys.path``. Idempotent."""
        self._finalizer()


def _prefix() -> str:
    # On a file system that machines share, another machine's directories look unlocked here.
    return f"{_PREFIX}-{re.sub(r'[^A-Za-z0-9]', '_', socket.gethostname())}"


def _remove(path: Path, lock: int | None, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that uses it
    # On the search path, another user could take a name that is free again.
    below = f"{path}{os.sep}"
    sys.path[:] = [entry for entry in sys.path if not f"{entry}{os.sep}".startswith(below)]
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _make_locked(parent: str | os.PathLike[str] | None) -> tuple[Path, int | None]:
    while True:
        path = make_private(_prefix(), parent)
        lock = _lock(path, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        # Another process has taken it for a left one before it was locked.
        if lock is not None:
            os.close(lock)


def _lock(path: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """Lock a directory for the life of this process. Returns None if that is impossible."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@cache
def _remove_stale_once(parent: Path) -> None:
    remove_stale(parent)


def remove_stale(parent: Path) -> list[Path]:
    """Remove and return directories that killed processes of this user left in ``parent``."""
    removed = []
    for path in parent.glob(f"{_prefix()}-????????"):
        with suppress(OSError, ClusterError):
            check_private(path)
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
                removed.append(path)
    return removed
