"""The lock of a directory, respected by processes on several machines."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalable.errors import ClusterError

#: Longest wait in seconds for the lock. It is usually held for milliseconds.
LOCK_TIMEOUT_S = 30.0
_LOCK_POLL_S = 0.02


@contextmanager
def locked_directory(parent: Path) -> Iterator[None]:
    """Hold the lock of a directory. Raise ClusterError after 30 s, or without file locks."""
    path = parent / ".lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s",
                    hint=f"`fuser {path}` shows that process, which began to make a cluster",
                ) from error
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            raise ClusterError(
                f"{path} cannot be locked: {error.strerror}",
                hint="let XDG_STATE_HOME name a directory on a file system that has locks",
            ) from error
        else:
            return
