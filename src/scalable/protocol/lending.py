"""Lending of slots: a call that waits for other calls lets another call run in its slot.

A slot is room for one call on a worker. Only workers with an attribute ``slot_lender`` lend slots;
on other workers the functions in here do nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from scalable.protocol.dask_seams.worker import current_call

#: Longest time in seconds for which a waiting thread sleeps, because an interrupt reaches a thread
#: only when it is awake.
INTERRUPTIBLE_S = 0.25


class CallInterrupted(BaseException):
    """Raised in a call that was cancelled or ran longer than its time limit."""


class _Lender(Protocol):
    """Object that lends the slots of one worker; its methods run in the worker's event loop."""

    @property
    def loop(self) -> Any:
        """Event loop of the worker."""

    def lend(self, key: Any, seconds: float) -> None:
        """Lend the slot of a waiting call that has run for ``seconds`` so far."""

    def lend_later(self, key: Any, since: float) -> None:
        """Lend the slot of a call that has made other calls, if the call still runs after a while.

        ``since`` is the start of the call, in seconds since 1970.
        """

    async def take_back(self, key: Any) -> None:
        """Wait until a call that has lent its slot has a slot again."""


@contextmanager
def slot_lent() -> Iterator[None]:
    """Lend the slot of the call in this thread while the block runs; do nothing outside a call."""
    here = _current_call()
    if here is None:
        yield
        return
    lender, key, since = here
    lender.loop.add_callback(lender.lend, key, time.time() - since)
    try:
        yield
    except CallInterrupted:
        raise  # the call ends, so it needs no slot
    except BaseException:
        take_slot_back()
        raise
    take_slot_back()


def take_slot_back() -> None:
    """Wait until the call in this thread has a slot again, if its slot was lent."""
    here = _current_call()
    if here is not None:
        lender, key, _ = here
        asyncio.run_coroutine_threadsafe(lender.take_back(key), lender.loop.asyncio_loop).result()


def sync_in_call(loop: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine and wait for it, like Dask's ``sync``, but let an interrupt end the wait.

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
    """Record that the call in this thread has made other calls.

    The call may wait for the other calls in ways that this package does not notice.
    """
    here = _current_call()
    if here is not None:
        lender, key, since = here
        lender.loop.add_callback(lender.lend_later, key, since)


def _current_call() -> tuple[_Lender, Any, float] | None:
    """Return the worker's lender, and the key and start of the call in this thread.

    The start is in seconds since 1970. Return None outside a call, and if the worker lends no
    slots.
    """
    here = current_call()
    if here is None:
        return None
    worker, key, start = here
    lender = getattr(worker, "slot_lender", None)
    return None if lender is None else (lender, key, start)
