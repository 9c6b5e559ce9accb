"""Closing of sessions that a script leaves open, and a warning about unfinished tasks."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient

logger = logging.getLogger("scalable.session")

#: Method that closes a session; its argument is the error that stopped the script, or None.
Close: TypeAlias = Callable[[BaseException | None], None]

_open: set[weakref.WeakMethod[Close]] = set()


def closed_at_exit(close: Close) -> None:
    """Register a session to close at the interpreter's exit, with a weak reference."""
    import distributed.deploy.spec  # noqa: F401 - its exit handler has to run later

    atexit.unregister(_close_open_sessions)
    atexit.register(_close_open_sessions)
    _open.add(weakref.WeakMethod(close, _open.discard))


def no_longer_closed_at_exit(close: Close) -> None:
    """Undo :func:`closed_at_exit`, unless the session is not registered."""
    _open.discard(weakref.WeakMethod(close))


def warn_of_unfinished(client: ScalableClient) -> None:
    """Log a warning if closing the session cancels unfinished tasks."""
    unfinished = client.unfinished_calls()
    if unfinished:
        logger.warning(
            "the session ends with %d unfinished calls, which are cancelled; "
            "gather their results before the session ends",
            unfinished,
        )


def _close_open_sessions() -> None:
    """Close the sessions that the script left open, before Dask closes their event loops."""
    error = getattr(sys, "last_value", None)
    for reference in list(_open):
        close = reference()
        if close is not None:
            close(error)
