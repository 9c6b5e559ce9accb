"""Constants and types of bundles (batches of calls sent as one Dask task).

Clients and workers share them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Longest time in seconds between two messages about ended calls while a bundle runs. If the worker
#: is lost, the calls that ended since its last message run again.
TELL_S = 0.025
#: Seconds that an interrupted call has to end; after that its worker is given up.
INTERRUPT_GRACE_S = 2.0
#: Used in place of a position: all calls of a bundle that has not begun.
EVERY = -2
#: Used in place of a position: all calls of a task, a bundle or not, that runs.
ALL = -3
#: Kinds of outcome of a call: the value itself, the pickled value, an error, or a value that stays
#: on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
#: Identifier of this process. A worker inside the client's own process does not send printed output
#: to the client, because the output is on the screen already.
PROCESS = uuid.uuid4().hex

#: Calls to send: for each call the index of its function, its positional arguments and its keyword
#: arguments. The indexes are None if all calls have function 0; the keyword arguments are None if
#: no call has any.
Calls = tuple[
    Sequence[int] | None, Sequence[Sequence[Any]], Sequence[Mapping[str, Any] | None] | None
]


def first_try(bundle: str, position: int) -> str:
    """Return the name of a call that is sent for the first time.

    Parameters
    ----------
    bundle
        Key of its bundle.
    position
        Its position in the bundle.
    """
    return f"{bundle}:{position}"


def too_long(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    """Return the error for a call that ran longer than its time limit.

    Parameters
    ----------
    function
        Function of the call.
    timeout_s
        Time limit in seconds.
    """
    named = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{named}() ran for longer than {timeout_s:g} s")
