"""Files that only this user can change, and their file server's clock."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scalable.cache.entries import Unreadable

#: Flags for opening files: a named pipe must not block, and no link is followed.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Prefix of files that are not entries: they are being written, or serve leases.
TEMPORARY = "."
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Descriptor:
    """Reader of a descriptor, faster than ``open`` for small entries. The caller closes it."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self, size: int, /) -> bytes:
        return os.read(self._number, size)

    def readinto(self, buffer: memoryview, /) -> int:
        return os.readv(self._number, [buffer])


def check_own(status: os.stat_result) -> None:
    """Raise Unreadable unless a file is regular and only this user can change it."""
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("foreign", "is not a regular file")
    if status.st_uid != os.geteuid():
        raise Unreadable("owner", f"belongs to another user (uid {status.st_uid})")
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise Unreadable("owner", f"can be changed by other users (mode {mode:o})")


def make_private(path: Path) -> None:
    """Create a directory and its missing parents for this user alone, or raise OSError."""
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def touched(path: Path) -> float:
    """Set a file's modification time by its server's clock, and return it. May raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
