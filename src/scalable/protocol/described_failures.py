"""Facts about a failed call, gathered where its arguments and its traceback are.

The result is plain and bounded, and travels to the scheduler with the end of the Dask task.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalable import settings
from scalable.frames import causes, own_frame
from scalable.protocol.shown_values import attributes_of, shown_arguments

logger = logging.getLogger("scalable.worker")

#: Largest number of lines and of characters of an output that are kept, counted from its end.
LAST_LINES = 20
LAST_CHARACTERS = 4000
#: Maximum number of notes of an error to which the note about its call is added.
MOST_NOTES = 10
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
        if (text := arguments_text(arguments)) is not None:
            facts["arguments"] = text
        if output:
            facts["stderr"], facts["stdout"] = _of_child(error)
            facts["output"] = recent_output()
    except Exception as problem:  # noqa: BLE001 - the call's own error must not be lost
        logger.debug("a failed call is not described in full: %r", problem)
    return facts


def message_of(error: BaseException) -> str:
    """Return the message of an error, as Python shows it in a traceback; does not raise."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"the message cannot be shown: str() raised {type(other).__name__}"


def error_text(error: BaseException) -> str:
    """Return class and message of an error as the text that the scheduler reads both from."""
    return f"{type(error).__name__}({message_of(error)!r})"


def arguments_text(arguments: Callable[[], Arguments]) -> str | None:
    """Return the arguments of a call as text; None if they are not known, or not to be shown."""
    known = arguments() if settings.records_arguments() else None
    return None if known is None else shown_arguments(*known)


def note_call(error: BaseException, name: str, arguments: str | None, worker: str | None) -> None:
    """Add the call, its arguments and its worker to an error, as a note; does not raise."""
    where = "" if worker is None else f" on worker {worker}"
    note = f"call {name}{arguments or ''}{where}"
    known = getattr(error, "__notes__", ())
    # One error object may be raised by many calls of a worker.
    if len(known) < MOST_NOTES and note not in known:
        with suppress(Exception):  # a class that takes no further attributes
            error.add_note(note)


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
