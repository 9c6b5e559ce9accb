"""Scratch directories of workers: one for each, found again by whose they are."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path


def file_name(name: str) -> str:
    """A worker's or a tag's name as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", name)


def make_scratch(cluster_id: str, name: str) -> Path:
    """Make the scratch directory of a worker, which only its owner may enter.

    Parameters
    ----------
    cluster_id
        Id of the cluster.
    name
        Of the worker.
    """
    # A directory for each: a common one that comes and goes could be put there by others.
    return Path(tempfile.mkdtemp(prefix=f"scalable-{cluster_id}-{file_name(name)}-"))


def find_scratch(cluster_id: str, name: str | None = None) -> tuple[Path, ...]:
    """Scratch directories that this user has of one worker of a cluster, or of all its workers.

    Parameters
    ----------
    cluster_id
        Id of the cluster.
    name
        Of the worker.
    """
    # What mkdtemp appends has eight characters; another worker's name may begin with this one's.
    rest = "*" if name is None else f"{file_name(name)}-????????"
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"scalable-{cluster_id}-{rest}"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
                found.append(path)
    return tuple(found)
