"""Facts about a failed call, gathered where its arguments and its traceback are.

The result is plain and bounded, and travels to the scheduler with the end of the Dask task.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from scalable import settings
from scalable.protocol.shown_values import attributes_of, shown_arguments

logger = logging.getLogger("scalable.worker")

#: Largest number of lines and of characters of an output that are kept, counted from its end.
LAST_LINES = 20
LAST_CHARACTERS = 4000
#: Largest number of errors of a chain of causes, and of frames of one error, that are looked at.
_MOST_CAUSES = 20
_MOST_FRAMES = 5000
_OF_SUBPROCESS = (subprocess.CalledProcessError, subprocess.TimeoutExpired)
_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)
_INSTALLED = "-packages" + os.sep
_OF_DASK = tuple(f"{_INSTALLED}{name}{os.sep}" for name in ("dask", "distributed", "cloudpickle"))

Arguments = tuple[Sequence[Any], Mapping[str, Any]] | None
_read_output: list[Callable[[], str | None]] = [lambda: None]


def read_output_with(read: Callable[[], str | None]) -> None:
    """Have ``read`` return the last lines that this process printed; for processes of workers."""
    _read_output[0] = read


def described(
    error: BaseException, arguments: Callable[[], Arguments], *, output: bool = True
) -> dict[str, str | None]:
    """Return the fields of :class:`.FailureDetails` that are known where a call has failed.

    Runs no code of the user's classes, and does not raise.

    Parameters
    ----------
    error
        Error of the call.
    arguments
        Function that returns the positional and keyword arguments of the call; None if they are
        not known.
    output
        Whether to read what the process and a child process have printed.
    """
    facts: dict[str, str | None] = {}
    try:
        facts["frame"] = own_frame(error)
        known = arguments() if settings.records_arguments() else None
        if known is not None:
            facts["arguments"] = shown_arguments(*known)
        if output:
            facts["stderr"], facts["stdout"] = _of_child(error)
            facts["output"] = _read_output[0]()
    except Exception as problem:  # noqa: BLE001 - the call's own error must not be lost
        logger.debug("a failed call is not described in full: %r", problem)
    return facts


def own_frame(error: BaseException) -> str | None:
    """Return the innermost frame of the user's own code, as ``file:line in function``.

    Frames of this package, of Dask and of Python's standard library are not the user's. A frame of
    another installed package is returned if there is no other.
    """
    installed = None
    for each in _causes(error):
        places = list(_places(each.__traceback__))
        for file, line, name in reversed(places):
            owner = _owner(file)
            if owner == "user":
                return f"{file}:{line} in {name}"
            if owner == "package" and installed is None:
                installed = f"{file}:{line} in {name}"
    return installed


def last_lines(text: str) -> str:
    """Return the last lines of an output, at most ``LAST_LINES`` and ``LAST_CHARACTERS``."""
    lines = text[-LAST_CHARACTERS:].rstrip().splitlines()
    return "\n".join(lines[-LAST_LINES:])


def _causes(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _places(trace: TracebackType | None) -> Iterator[tuple[str, int | None, str]]:
    count = 0
    while trace is not None and count < _MOST_FRAMES:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace, count = trace.tb_next, count + 1


@lru_cache(maxsize=10_000)
def _owner(file: str) -> str:
    """Return whose code a file is: the user's, that of another package, or neither."""
    if file.startswith(("<frozen", _OURS)) or any(p in file for p in _OF_DASK):
        return "ours"
    if _INSTALLED in file:
        return "package"
    return "ours" if os.path.realpath(file).startswith(_STANDARD) else "user"


def _of_child(error: BaseException) -> tuple[str | None, str | None]:
    """Return the last lines of the standard error and output of the child that has failed."""
    for each in _causes(error):
        if isinstance(each, _OF_SUBPROCESS):
            kept = attributes_of(each)
            return _tail(kept.get("stderr")), _tail(kept.get("output"))
    return None, None


def _tail(output: Any) -> str | None:
    if type(output) is bytes:
        output = output[-4 * LAST_CHARACTERS :].decode(errors="replace")
    return last_lines(output) or None if type(output) is str else None
