"""Closing of sessions that a script leaves open, and a warning about unfinished calls."""

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

#: Method that closes a session; its argument is the error that ended the script, or None.
Close: TypeAlias = Callable[[BaseException | None], None]

_open: set[weakref.WeakMethod[Close]] = set()


def closed_at_exit(close: Close) -> None:
    """Register a session to close at the interpreter's exit; hold only a weak reference to it."""
    import distributed.deploy.spec  # noqa: F401 - its part of the exit has to come later

    atexit.unregister(_close_open_sessions)
    atexit.register(_close_open_sessions)
    _open.add(weakref.WeakMethod(close, _open.discard))


def no_longer_closed_at_exit(close: Close) -> None:
    """Undo :func:`closed_at_exit`; do nothing for a session that is not registered."""
    _open.discard(weakref.WeakMethod(close))


def warn_of_unfinished(client: ScalableClient) -> None:
    """Log a warning if the end of a session cancels unfinished calls."""
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
