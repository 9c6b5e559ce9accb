"""The decision whether a worker may be forked or has to be started in a new interpreter. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Beginnings of variables that are read before or while the modules of a worker are loaded: by
#: the dynamic linker, C's library, Python, OpenSSL and Dask.
READ_AT_START = ("LD_", "DYLD_", "PYTHON", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "DASK_")
#: Further such variables, by their whole names.
#: HOME holds the user's own packages and Dask's configuration.
NAMES_READ_AT_START = frozenset({"LANG", "LANGUAGE", "TZ", "HOME", "PATH_LOCALE"})


@dataclass(frozen=True)
class StartRequest:
    """Properties of a worker that decide how it can be started.

    Attributes
    ----------
    environment
        Environment of the worker.
    preload
        Preload scripts of the worker.
    container
        Whether the worker runs in a container.
    interpreter
        Path of the worker's Python.
    server_environment
        Environment with which the fork server was started.
    server_interpreter
        Path of the fork server's Python.
    """

    environment: Mapping[str, str]
    preload: tuple[str, ...]
    container: bool
    interpreter: str
    server_environment: Mapping[str, str]
    server_interpreter: str


def obstacle(request: StartRequest) -> str | None:
    """Return the reason why a worker needs a new interpreter; None if it may be forked."""
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
    """Return whether a worker may be forked instead of started in a new interpreter."""
    return obstacle(request) is None


def different(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Return the names of variables that differ between two environments."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
