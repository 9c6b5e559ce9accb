"""The module search path of the processes that we start, and its protection."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_FULL_RANGE = 2**32 - 1
#: Part of the path of every local directory of Dask.
_SCRATCH_SPACE = "dask-scratch-space"


def search_path() -> tuple[str, ...]:
    """Return ``sys.path`` without local directories of nodes, whose names others can take later."""
    return tuple(entry or str(Path.cwd()) for entry in lasting(sys.path))


def lasting(entries: Iterable[str]) -> list[str]:
    """Return the entries of a search path that are not local directories of server nodes."""
    return [entry for entry in entries if _SCRATCH_SPACE not in entry]


def interpreter_options(directory: str | Path) -> tuple[str, ...]:
    """Return the options of ``python -m`` for a working directory.

    Python puts the working directory first on ``sys.path``. ``-P`` prevents it for another user's
    directory, and for one that every user may change, such as ``/tmp``.
    """
    status = Path(directory).stat()
    return () if is_trusted(status.st_uid) and not status.st_mode & stat.S_IWOTH else ("-P",)


@cache
def _in_user_namespace() -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    return [line.split() for line in lines] != [["0", "0", str(_FULL_RANGE)]]


def is_unmapped(uid: int) -> bool:
    """Return whether an owner is unknown here: in a container root may have no number."""
    if not _in_user_namespace():
        return False
    try:
        return uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def is_trusted(uid: int) -> bool:
    """Return whether a directory of this owner is as safe as one of our own."""
    return uid in (0, os.geteuid()) or is_unmapped(uid)
