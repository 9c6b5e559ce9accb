"""Files that are replaced atomically, and files that only their owner may read."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from scalable.errors import ClusterError

_OTHERS = 0o077
#: Types of files that are never replaced.
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file atomically by a new one. The umask restricts ``mode``."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_tail(path: Path, limit: int = 8192) -> str:
    """Return the complete lines in a file's last ``limit`` bytes, or "" if it is unreadable."""
    try:
        with path.open("rb") as file:
            begin = file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            text = file.read(limit).decode(errors="replace")
    except OSError:
        return ""
    # A line that was cut is not recognised, for example as one of Dask's.
    return text.partition("\n")[2] or text if begin else text


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file atomically by an indented JSON value."""
    write_whole(path, json.dumps(value, indent=2, default=str) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one that only its owner may read."""
    write_whole(path, text, mode=0o600)


def check_replaceable(path: Path) -> None:
    """Raise ClusterError unless a path is a regular file of this user, or does not exist.
    Links are refused, even dangling ones, because the write would replace or follow them.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), None)
    hint = "give the path of a file that you own, or of one that does not exist yet"
    if kind is not None:
        raise ClusterError(f"{path} is {kind}: it was not replaced", hint=hint)
    if status.st_uid != os.geteuid():
        raise ClusterError(f"{path} belongs to another user: it was not replaced", hint=hint)


def check_not_planted(path: Path) -> None:
    """Raise PermissionError if a user outside the directory's group could replace its files."""
    link, status = path.lstat(), path.stat()
    others = link.st_uid if stat.S_ISLNK(link.st_mode) else status.st_uid
    foreign = others not in (0, os.geteuid())
    open_to_all = bool(status.st_mode & stat.S_IWOTH)
    if foreign and (open_to_all or stat.S_ISLNK(link.st_mode)):
        raise PermissionError(f"{path} belongs to another user (uid {others})")
    if open_to_all and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(f"every user can replace files in {path} (mode {mode:o})")


def read_private(path: Path) -> str:
    """Return a secret file's content, or raise ClusterError if another user may access it."""
    with path.open(encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            raise ClusterError(f"{path} belongs to another user: credentials are not read from it")
        if status.st_mode & _OTHERS:
            raise ClusterError(
                f"{path} is accessible to other users (mode {status.st_mode & 0o777:o}): "
                "credentials are not read from it",
                hint=f"chmod 600 {path}, if no other user can have read it",
            )
        return file.read()


def working_directory() -> Path:
    """Return the working directory, or a path without files if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.devnull)


def private_directory(path: Path) -> Path:
    """Create a directory and its missing parents with access for the owner alone.
    Restrict an existing directory, and raise ClusterError if another user owns it.
    """
    for missing in reversed([d for d in (path, *path.parents) if not d.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise ClusterError(f"{path} belongs to another user: no credentials are written to it")
    if status.st_mode & _OTHERS:
        path.chmod(0o700)
    return path


# Regular files ------------------------------------------------------------------------------------


def open_regular(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. A pipe or a device is a FileNotFoundError, and never blocks.
    Other users may have put one into a shared directory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = IsADirectoryError if stat.S_ISDIR(mode) else FileNotFoundError
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENOENT
        raise kind(number, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Raises the errors of :func:`open_regular`."""
    with open_regular(path) as file:
        return file.read()


# Secrets ------------------------------------------------------------------------------------------


def read_secrets(sources: Mapping[str, str], directory: Path | None = None) -> dict[str, str]:
    """Return a component's secret values by variable, from ``env:NAME`` or ``file:PATH``.
    Relative paths start at ``directory``. A missing secret raises ClusterError without any value.
    """
    found = {}
    for name, source in sources.items():
        kind, _, where = source.partition(":")
        if kind == "env":
            if where not in os.environ:
                raise ClusterError(f"secret {name}: the variable {where} is not set")
            found[name] = os.environ[where]
            continue
        path = (directory or Path.cwd()) / Path(where).expanduser()
        try:
            found[name] = path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ClusterError(f"secret {name}: {path} cannot be read: {why}") from None
        if "\0" in found[name]:
            raise ClusterError(f"secret {name}: {path} contains a NUL character")
    return found
