"""The end of sessions that a script leaves open, and of calls that it does not wait for."""

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
    """Close a session when the interpreter exits; the session itself may go before."""
    _open.add(weakref.WeakMethod(close, _open.discard))


def no_longer_closed_at_exit(close: Close) -> None:
    """Undo :func:`closed_at_exit`; harmless where it was not called."""
    _open.discard(weakref.WeakMethod(close))


def warn_of_unfinished(client: ScalableClient) -> None:
    """Log a warning about calls that the end of their session cancels."""
    unfinished = sum(state.status == "pending" for state in list(client.futures.values()))
    if unfinished:
        logger.warning(
            "the session ends with %d unfinished calls, which are cancelled; "
            "gather their results before the session ends",
            unfinished,
        )


@atexit.register
def _close_open_sessions() -> None:
    """End sessions that the script left open, before Dask closes their event loop."""
    error = getattr(sys, "last_value", None)
    for reference in list(_open):
        close = reference()
        if close is not None:
            close(error)
