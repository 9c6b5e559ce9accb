"""`FailedArguments`: functions and arguments of failed tasks, to run these tasks again.

Functions and classes are stored by name, including those of the script: a rerun has current code.
"""

from __future__ import annotations

import io
import os
import pickle
import secrets
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from scalable.caching.entries import Unreadable
from scalable.caching.own_files import READING, check_own, make_private
from scalable.errors import RunError
from scalable.units import format_bytes

#: Largest size in bytes of the stored arguments of one failed task.
CALL_LIMIT: Final = 64 << 20
#: Largest size in bytes of the stored arguments of all failed tasks of one process.
PROCESS_LIMIT: Final = 1 << 30
_SCRIPT: Final = "__main__"
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class FailedArguments:
    """Functions and arguments of failed tasks, in files of a directory made at the first write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written = 0

    def add(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """Store a task and return the name of its file, or raise Unreadable if that fails."""
        limit = min(CALL_LIMIT, PROCESS_LIMIT - self._written)
        buffer = _Bounded(limit)
        try:
            _ByName(buffer, protocol=5).dump((function, args, dict(kwargs)))
        except Unreadable:
            raise
        except Exception as error:  # pickling runs methods of the arguments' classes
            raise Unreadable("unpicklable", f"cannot be pickled: {error}") from error
        data = buffer.getbuffer()
        name = secrets.token_hex(12)
        try:
            make_private(self._directory)
            with open(os.open(self._directory / name, _WRITING, 0o600), "wb") as file:  # noqa: PTH123
                file.write(data)
        except OSError as error:
            raise Unreadable("unwritten", f"cannot be written: {error.strerror}") from error
        self._written += data.nbytes
        return name

    def call(self, name: str) -> Call:
        """Return a task with the code as it is now.

        Raises RunError if the file is gone or belongs to another user, or if code that it names is
        missing.
        """
        path = self._directory / Path(name).name
        try:
            with open(os.open(path, READING), "rb") as file:  # noqa: PTH123 - a descriptor
                check_own(os.fstat(file.fileno()))
                found: Call = pickle.load(file)  # noqa: S301 - the file belongs to this user
        except FileNotFoundError as error:
            raise RunError("its arguments are no longer kept") from error
        except (OSError, Unreadable) as error:
            raise RunError(f"the file of its arguments {path} {error}") from error
        except Exception as error:
            raise RunError(
                f"its function or arguments cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return found

    def needs_script(self, name: str) -> bool:
        """Return whether a task refers to functions or classes of the workflow's script."""
        try:
            return of_script.__name__.encode() in (self._directory / Path(name).name).read_bytes()
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Delete the file of a task. Already gone is success."""
        (self._directory / Path(name).name).unlink(missing_ok=True)


class _Bounded(io.BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > self._limit:
            raise Unreadable("large", f"have more than {format_bytes(self._limit)}")
        return super().write(data)


class _ByName(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType | type) and obj.__module__ == _SCRIPT:
            if "<" in obj.__qualname__:
                raise Unreadable(
                    "unnamed", f"hold {obj.__qualname__}, which cannot be found by its name"
                )
            return of_script, (obj.__qualname__,)
        return NotImplemented


def of_script(name: str) -> Any:
    """Return a function or class of the workflow's script by its qualified name."""
    found: Any = sys.modules[_SCRIPT]
    for part in name.split("."):
        found = getattr(found, part)
    return found
