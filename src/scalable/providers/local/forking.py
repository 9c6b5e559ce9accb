"""The decision whether a worker can be forked or needs a new interpreter. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Prefixes of variables that are read before or while the modules of a worker are loaded: by
#: the dynamic linker, C's library, Python, OpenSSL and Dask.
READ_AT_START = ("LD_", "DYLD_", "PYTHON", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "DASK_")
#: Other such variables, by their full names.
#: HOME contains the user's own packages and Dask's configuration.
NAMES_READ_AT_START = frozenset({"LANG", "LANGUAGE", "TZ", "HOME", "PATH_LOCALE"})


@dataclass(frozen=True)
class StartRequest:
    """The properties of a worker that decide how it can be started."""

    environment: Mapping[str, str]
    preload: tuple[str, ...]
    container: bool
    #: Path of the worker's Python.
    interpreter: str
    #: Environment with which the fork server was started.
    server_environment: Mapping[str, str]
    server_interpreter: str


def obstacle(request: StartRequest) -> str | None:
    """Return the reason why a worker needs a new interpreter, or None if it can be forked."""
    if request.container:
        return "it runs in a container"
    if request.interpreter != request.server_interpreter:
        return f"it runs under {request.interpreter}"
    if request.preload:
        return "it has a preload script"
    for name in sorted(different(request.environment, request.server_environment)):
        if name in NAMES_READ_AT_START or name.startswith(READ_AT_START):
            return f"its variable {name} is read when an interpreter starts"
    return None


def can_fork(request: StartRequest) -> bool:
    """Return whether a worker can be forked instead of started in a new interpreter."""
    return obstacle(request) is None


def different(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Return the names of variables that differ between two environments."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
