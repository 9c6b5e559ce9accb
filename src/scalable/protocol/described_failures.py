"""Facts about a failed call, gathered where its arguments and its traceback are.

The result is plain and bounded, and travels to the scheduler with the end of the Dask task.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalable import settings
from scalable.frames import causes, own_frame
from scalable.protocol.shown_values import attributes_of, shown_arguments

logger = logging.getLogger("scalable.worker")

#: Largest number of lines and of characters of an output that are kept, counted from its end.
LAST_LINES = 20
LAST_CHARACTERS = 4000
_OF_SUBPROCESS = (subprocess.CalledProcessError, subprocess.TimeoutExpired)

Arguments = tuple[Sequence[Any], Mapping[str, Any]] | None
_read_output: list[Callable[[], str | None]] = [lambda: None]


def read_output_with(read: Callable[[], str | None]) -> None:
    """Have ``read`` return the last lines that this process printed; for processes of workers."""
    _read_output[0] = read


def recent_output() -> str | None:
    """Return the last lines that this process printed; None if they are not known."""
    return _read_output[0]()


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
            facts["output"] = recent_output()
    except Exception as problem:  # noqa: BLE001 - the call's own error must not be lost
        logger.debug("a failed call is not described in full: %r", problem)
    return facts


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of an error's class and its base classes; with modules unless builtin."""
    return tuple(
        each.__qualname__
        if each.__module__ == "builtins"
        else f"{each.__module__}.{each.__qualname__}"
        for each in type(error).__mro__
        if each not in (BaseException, object)
    )


def last_lines(text: str) -> str:
    """Return the last lines of an output, at most ``LAST_LINES`` and ``LAST_CHARACTERS``."""
    lines = text[-LAST_CHARACTERS:].rstrip().splitlines()
    return "\n".join(lines[-LAST_LINES:])


def _of_child(error: BaseException) -> tuple[str | None, str | None]:
    """Return the last lines of the standard error and output of the child that has failed."""
    for each in causes(error):
        if isinstance(each, _OF_SUBPROCESS):
            kept = attributes_of(each)
            return _tail(kept.get("stderr")), _tail(kept.get("output"))
    return None, None


def _tail(output: Any) -> str | None:
    if type(output) is bytes:
        output = output[-4 * LAST_CHARACTERS :].decode(errors="replace")
    return last_lines(output) or None if type(output) is str else None
