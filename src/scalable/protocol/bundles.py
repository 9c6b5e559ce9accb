"""Constants and types of bundles (batches of tasks sent as one Dask task)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Maximum seconds between two messages about finished tasks while a bundle runs. If the worker is
#: lost, the tasks that finished since its last message run again.
TELL_S = 0.025
#: Seconds that an interrupted task has to stop. After that its worker is replaced.
INTERRUPT_GRACE_S = 2.0
#: Instead of a position: all tasks of a bundle that has not started.
EVERY = -2
#: Instead of a position: all that a running Dask task executes, whether it is a bundle or not.
ALL = -3
#: Kinds of outcome of a task: the value itself, the pickled value, an error, or a value that stays
#: on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
#: Identifier of this process. A worker inside the client's own process does not send printed output
#: to the client, because the output is on the screen already.
PROCESS = uuid.uuid4().hex

#: Tasks to send: for each task the index of its function, its positional arguments and its keyword
#: arguments. The indexes are None if all tasks have function 0. The keyword arguments are None if
#: no task has any.
Calls = tuple[
    Sequence[int] | None, Sequence[Sequence[Any]], Sequence[Mapping[str, Any] | None] | None
]


def first_try(bundle: str, position: int) -> str:
    """Return the name of a task's first attempt, from its bundle's key and its position."""
    return f"{bundle}:{position}"


def too_long(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    """Return the error for a task that ran longer than its time limit."""
    named = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{named}() ran for longer than {timeout_s:g} s")
