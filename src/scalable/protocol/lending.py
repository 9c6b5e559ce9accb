"""Lending of slots from within a call: a call that waits for others lets them run in its slot.

A worker that lends slots has an attribute ``slot_lender``. On other workers nothing is lent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from scalable.protocol.dask_seams.worker import current_call

#: Longest time in seconds for which a thread that waits within a call sleeps: an interrupt reaches
#: a thread only when it is awake.
INTERRUPTIBLE_S = 0.25


class CallInterrupted(BaseException):
    """Raised within a call that was cancelled or ran for too long."""


class _Lender(Protocol):
    """Lends the slots of one worker; its methods run in the worker's event loop."""

    @property
    def loop(self) -> Any:
        """Event loop of the worker."""

    def lend(self, key: Any, seconds: float) -> None:
        """Let other calls begin in the slot of a call that waits and has run for some seconds."""

    def lend_later(self, key: Any, since: float) -> None:
        """Lend the slot of a call that made others, if it still runs after a while."""

    async def take_back(self, key: Any) -> None:
        """Wait until a call that has stopped waiting has a slot again."""


@contextmanager
def slot_lent() -> Iterator[None]:
    """Lend the slot of this thread's call while it waits. Does nothing outside a call."""
    here = _current_call()
    if here is None:
        yield
        return
    lender, key, since = here
    lender.loop.add_callback(lender.lend, key, time.time() - since)
    try:
        yield
    except CallInterrupted:
        raise  # the call ends, and needs no slot
    except BaseException:
        take_slot_back()
        raise
    take_slot_back()


def take_slot_back() -> None:
    """Wait until this thread's call has a slot again, if its slot was lent."""
    here = _current_call()
    if here is not None:
        lender, key, _ = here
        asyncio.run_coroutine_threadsafe(lender.take_back(key), lender.loop.asyncio_loop).result()


def sync_in_call(loop: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine and wait for it, as Dask does, but so that an interrupt gets through.

    Parameters
    ----------
    loop
        Event loop of the client.
    func, *args, **kwargs
        Coroutine function and its arguments.
    """

    async def run() -> Any:
        return await func(*args, **kwargs)

    future = asyncio.run_coroutine_threadsafe(run(), loop.asyncio_loop)
    try:
        while not future.done():
            concurrent.futures.wait([future], INTERRUPTIBLE_S)
    except BaseException:
        future.cancel()
        raise
    return future.result()


def in_call() -> bool:
    """Return whether this thread runs a call on a worker that lends slots."""
    return _current_call() is not None


def made_calls() -> None:
    """Note that this thread's call has made others, for which it may wait without our notice."""
    here = _current_call()
    if here is not None:
        lender, key, since = here
        lender.loop.add_callback(lender.lend_later, key, since)


def _current_call() -> tuple[_Lender, Any, float] | None:
    """Return the worker's lender, and the key and start of the call that this thread runs."""
    here = current_call()
    if here is None:
        return None
    worker, key, start = here
    lender = getattr(worker, "slot_lender", None)
    return None if lender is None else (lender, key, start)
