"""Constants and types of bundles, shared by clients and workers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Largest time in seconds between two messages about ended calls while a bundle runs: the calls
#: that ended since the last message run again if the worker is lost.
TELL_S = 0.01
#: Seconds that an interrupted call has to end before its worker is given up.
INTERRUPT_GRACE_S = 2.0
#: Stands for the positions of all calls of a bundle that has not begun.
EVERY = -2
#: Kinds of outcome: the value itself, its pickle, an error, a value that stays on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
#: Identifier of this process: the output of a call in the client's own process is shown already.
PROCESS = uuid.uuid4().hex

#: Calls to send: indexes of the functions (None where all calls have the first one), positional
#: arguments, and keyword arguments (None where no call has any).
Calls = tuple[
    Sequence[int] | None, Sequence[Sequence[Any]], Sequence[Mapping[str, Any] | None] | None
]


def too_long(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    """Return the error of a call that ran for longer than its limit.

    Parameters
    ----------
    function
        Function of the call.
    timeout_s
        Limit in seconds.
    """
    named = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{named}() ran for longer than {timeout_s:g} s")
