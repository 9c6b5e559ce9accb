"""Scratch directories, one for each worker, named after the cluster's id and the worker."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from scalable.protocol.private_directory import default_parent, make_private


def file_name(name: str) -> str:
    """Return the name of a worker or tag with characters that are safe in a file name."""
    return re.sub(r"[^\w.-]", "_", name)


def make_scratch(cluster_id: str, name: str) -> Path:
    """Create the scratch directory of a worker. Only its owner can enter it."""
    # Workers share no parent directory, because another user could create that one first.
    return make_private(f"scalable-{cluster_id}-{file_name(name)}")


def find_scratch(cluster_id: str, name: str | None = None) -> tuple[Path, ...]:
    """Return this user's scratch directories of one worker of a cluster, or of all (name None)."""
    # mkdtemp appends eight characters. Another worker's name may start with this one.
    rest = "*" if name is None else f"{file_name(name)}-????????"
    found = []
    for path in default_parent().glob(f"scalable-{cluster_id}-{rest}"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
                found.append(path)
    return tuple(found)
