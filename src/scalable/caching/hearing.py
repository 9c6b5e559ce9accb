"""Listeners for outcomes of cached tasks, in the thread or asyncio task that runs them.

A worker listens, to report outcomes when a task finishes. Without a listener, the reasons of cache
misses are not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from scalable.spec.remembered import RememberedOutcome

_listener: ContextVar[Callable[[RememberedOutcome], None] | None] = ContextVar(
    "scalable_remembered_outcomes", default=None
)


@contextmanager
def heard_by(listener: Callable[[RememberedOutcome], None]) -> Iterator[None]:
    """Pass the outcomes of cached tasks that run in a block to a function."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def unheard() -> Iterator[None]:
    """Suppress the outcomes of cached tasks that run in a block, within another task."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Callable[[RememberedOutcome], None] | None:
    """Return the current listener for outcomes, or None."""
    return _listener.get()
