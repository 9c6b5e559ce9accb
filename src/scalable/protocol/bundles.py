"""Bundles of calls: what client and worker must agree on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Seconds at most between two messages of ended calls while a bundle runs: those calls would run
#: again if the worker were lost.
TELL_S = 0.01
#: Seconds that an interrupted call gets to end before its worker is given up.
INTERRUPT_GRACE_S = 2.0
#: Stands for the numbers of all calls of a bundle that has not begun.
EVERY = -2
#: Kinds of outcome: the value itself, its pickle, an error, a value that stays on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
#: Names this process: what is printed in the client's own process is on its screen already.
PROCESS = uuid.uuid4().hex

#: Numbers of the functions (None where all calls have the first), positional and keyword arguments.
Calls = tuple[
    Sequence[int] | None, Sequence[Sequence[Any]], Sequence[Mapping[str, Any] | None] | None
]


def too_long(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    """Return the error of a call that ran for longer than its limit."""
    named = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{named}() ran for longer than {timeout_s:g} s")
