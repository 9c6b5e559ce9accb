"""Hearing the outcomes of remembered calls, in the thread or task in which they are called.

Calls tell outcomes to whoever listens: a worker, which reports them with the end of the call.
Nobody listens outside a worker, and then the reasons of misses are not looked for.
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
    """Have a function hear the outcomes of the remembered calls that are made in a block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def unheard() -> Iterator[None]:
    """Have nobody hear the outcomes of the calls that are made in a block, within another call."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Callable[[RememberedOutcome], None] | None:
    """Return who hears outcomes now; None if nobody does."""
    return _listener.get()
