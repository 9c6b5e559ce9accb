"""Release of the objects that the frames of a failed task hold."""

from __future__ import annotations

from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType

#: Frames of these kinds may continue after an error that passed through them.
_MAY_GO_ON = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def release_frames(error: BaseException) -> None:
    """Clear the variables of the frames in the tracebacks of an error and of its causes.

    An error and its frames often refer to each other. Futures in these frames would keep their
    results on the workers, and their tasks running, until Python's next garbage collection.
    """
    errors: set[int] = set()
    frames: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in errors:
            continue
        errors.add(id(each))
        trace = each.__traceback__
        while trace is not None:
            _clear(trace.tb_frame, frames)
            trace = trace.tb_next
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions


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
