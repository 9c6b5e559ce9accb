"""Facts about a failed task, gathered where its arguments and its traceback are.

The result is plain and bounded. It is sent to the scheduler with the outcome of the Dask task.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType, TracebackType
from typing import Any

from scalable import settings
from scalable.frames import causes, own_frame
from scalable.harmless import sendable
from scalable.protocol.shown_values import attributes_of, shown_arguments

logger = logging.getLogger("scalable.worker")

#: Maximum numbers of last lines and last characters of an output that are kept.
LAST_LINES = 20
LAST_CHARACTERS = 4000
#: Number of notes of an error from which no note about its task is added.
MOST_NOTES = 10
_OF_SUBPROCESS = (subprocess.CalledProcessError, subprocess.TimeoutExpired)

Arguments = tuple[Sequence[Any], Mapping[str, Any]] | None
_read_output: list[Callable[[], str | None]] = [lambda: None]


def read_output_with(read: Callable[[], str | None]) -> None:
    """Set the function that returns the last lines that this process printed. For workers."""
    _read_output[0] = read


def recent_output() -> str | None:
    """Return the last lines that this process printed, or None if they are unknown."""
    return _read_output[0]()


def described(
    error: BaseException, arguments: Callable[[], Arguments], *, output: bool = True
) -> dict[str, str | None]:
    """Return the fields of :class:`.FailureDetails` that are known where a task has failed.

    Does not raise, and runs no code of the user's classes. ``arguments`` returns None if the
    arguments are unknown. ``output`` includes what the process and a failed child process have
    printed.
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
    return {name: text and sendable(text) for name, text in facts.items()}


def message_of(error: BaseException) -> str:
    """Return an error's message as in a traceback. Does not raise."""
    try:
        return sendable(str(error))
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"the message cannot be shown: str() raised {type(other).__name__}"


def error_text(error: BaseException) -> str:
    """Return an error's class and message as a string from which the scheduler reads both."""
    return f"{type(error).__name__}({message_of(error)!r})"


def arguments_text(arguments: Callable[[], Arguments]) -> str | None:
    """Return a task's arguments as a string, or None if they are unknown or not recorded."""
    known = arguments() if settings.records_arguments() else None
    return None if known is None else sendable(shown_arguments(*known))


def note_call(error: BaseException, name: str, arguments: str | None, worker: str | None) -> None:
    """Add a note with the task, its arguments and its worker to an error. Does not raise."""
    where = "" if worker is None else f" on worker {worker}"
    note = f"call {name}{arguments or ''}{where}"
    known = getattr(error, "__notes__", ())
    # One error object may be raised by many tasks of a worker.
    if len(known) < MOST_NOTES and note not in known:
        with suppress(Exception):  # a class that accepts no attributes
            error.add_note(note)


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of an error's class and bases, with modules unless builtin."""
    return tuple(
        each.__qualname__
        if each.__module__ == "builtins"
        else f"{each.__module__}.{each.__qualname__}"
        for each in type(error).__mro__
        if each not in (BaseException, object)
    )


def last_lines(text: str) -> str:
    """Return the last ``LAST_LINES`` lines of an output, of at most ``LAST_CHARACTERS``."""
    lines = text[-LAST_CHARACTERS:].rstrip().splitlines()
    return "\n".join(lines[-LAST_LINES:])


def _of_child(error: BaseException) -> tuple[str | None, str | None]:
    """Return the last lines of stderr and stdout of the failed child process."""
    for each in causes(error):
        if isinstance(each, _OF_SUBPROCESS):
            kept = attributes_of(each)
            return _tail(kept.get("stderr")), _tail(kept.get("output"))
    return None, None


def _tail(output: Any) -> str | None:
    if type(output) is bytes:
        output = output[-4 * LAST_CHARACTERS :].decode(errors="replace")
    return last_lines(output) or None if type(output) is str else None


# Ended frames -------------------------------------------------------------------------------------

#: Frames of these kinds may continue after an error that passed through them.
_MAY_GO_ON = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


#: Numbers of frames that are kept of a deep traceback: the first ones, and the last ones. Pickling
#: takes several levels of Python's stack for each, of which there are 1,000 by default.
_FIRST_FRAMES, _LAST_FRAMES = 10, 30


def release_frames(error: BaseException) -> None:
    """Clear the variables of the frames in the tracebacks of an error and of its causes.

    An error and its frames often refer to each other. Futures in these frames would keep their
    results on the workers, and their tasks running, until Python's next garbage collection.
    """
    cleared: set[int] = set()
    for each in _all_errors(error):
        trace = each.__traceback__
        while trace is not None:
            _clear(trace.tb_frame, cleared)
            trace = trace.tb_next
    shorten_tracebacks(error)


def shorten_tracebacks(error: BaseException) -> None:
    """Drop the middle of tracebacks of an error and its causes that are too deep to be pickled."""
    for each in _all_errors(error):
        frames, trace = [], each.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        if (dropped := len(frames) - _FIRST_FRAMES - _LAST_FRAMES) <= 0:
            continue
        kept = frames[:_FIRST_FRAMES] + frames[-_LAST_FRAMES:]
        for frame in reversed(kept):
            trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        each.__traceback__ = trace
        each.add_note(f"{dropped} frames in the middle of the traceback are not shown")


def _all_errors(error: BaseException) -> list[BaseException]:
    """Return an error, its causes, and the members of groups, each once."""
    known: dict[int, BaseException] = {}
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in known:
            continue
        known[id(each)] = each
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions
    return list(known.values())


def _clear(frame: FrameType | None, cleared: set[int]) -> None:
    """Clear a frame and its callers (Dask cuts tracebacks), up to one that still runs."""
    while frame is not None and id(frame) not in cleared:
        if not frame.f_code.co_flags & _MAY_GO_ON:
            try:
                frame.clear()
            except RuntimeError:  # it still runs
                return
        cleared.add(id(frame))
        frame = frame.f_back
