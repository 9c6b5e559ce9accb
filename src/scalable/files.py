"""Files that are replaced in one step, and files that only their owner may read."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.errors import ClusterError

_OTHERS = 0o077


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file in one step: a reader sees the old text or the new one, never a part.

    Parameters
    ----------
    path, text
        The file and what it is to hold.
    mode
        Its permissions, less those that the process's umask takes away.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by a JSON value, in one step and fit for people to read."""
    write_whole(path, json.dumps(value, indent=2, default=str) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read."""
    write_whole(path, text, mode=0o600)


def read_private(path: Path) -> str:
    """Read a file that holds a secret.

    Raises
    ------
    ClusterError
        When others may read or change it, or it belongs to somebody else.
    FileNotFoundError
        When there is none.
    """
    with path.open(encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            raise ClusterError(
                f"{path} belongs to another user: it holds credentials, so it is not used"
            )
        if status.st_mode & _OTHERS:
            raise ClusterError(
                f"{path} can be used by others (mode {status.st_mode & 0o777:o}): it holds "
                "credentials, so it is not used",
                hint=f"chmod 600 {path}, if nobody else can have read it",
            )
        return file.read()


def private_directory(path: Path) -> Path:
    """Make a directory, and those above it that are missing, for its owner alone.

    One that is there is closed to others.

    Raises
    ------
    ClusterError
        When it is there and belongs to somebody else.
    """
    for missing in reversed([d for d in (path, *path.parents) if not d.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise ClusterError(f"{path} belongs to another user: nothing is kept there")
    if status.st_mode & _OTHERS:
        path.chmod(0o700)
    return path
