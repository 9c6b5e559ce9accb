"""Lending of slots, from within a call: a call that waits for others lets them run in its slot.

A worker that lends has an attribute ``slot_lender``; elsewhere nothing is lent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from distributed.worker import get_worker, thread_state  # type: ignore[attr-defined]

#: Seconds between two looks of a thread that waits within a call: only then an interrupt gets
#: through.
INTERRUPTIBLE_S = 0.25


class CallInterrupted(BaseException):
    """Raised within a call that was cancelled or ran for too long."""


class _Lender(Protocol):
    """Lends the slots of one worker; its methods run in the worker's event loop."""

    @property
    def loop(self) -> Any:
        """The worker's event loop."""

    def lend(self, key: Any, seconds: float) -> None:
        """Let other calls begin in the place of one that waits, after it ran for some seconds."""

    def lend_later(self, key: Any, since: float) -> None:
        """Lend the slot of a call that made others, if it still runs after a while."""

    async def take_back(self, key: Any) -> None:
        """Wait until a call that waits no more has a slot again."""


@contextmanager
def slot_lent() -> Iterator[None]:
    """While the call of this thread waits, others may run in its slot. Nothing outside a call."""
    here = _here()
    if here is None:
        yield
        return
    lender, key, since = here
    lender.loop.add_callback(lender.lend, key, time.time() - since)
    try:
        yield
    except CallInterrupted:
        raise  # it ends, rather than to wait for its turn
    except BaseException:
        take_slot_back()
        raise
    take_slot_back()


def take_slot_back() -> None:
    """Wait until the call of this thread has its slot again, if it was lent."""
    here = _here()
    if here is not None:
        lender, key, _ = here
        asyncio.run_coroutine_threadsafe(lender.take_back(key), lender.loop.asyncio_loop).result()


def sync_in_call(loop: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine and wait, as Dask does, but so that an interrupt gets through soon."""

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
    """Whether this thread runs a call on a worker that lends slots."""
    return _here() is not None


def made_calls() -> None:
    """The call of this thread has made others: it may wait for them in a way that is not seen."""
    here = _here()
    if here is not None:
        lender, key, since = here
        lender.loop.add_callback(lender.lend_later, key, since)


def _here() -> tuple[_Lender, Any, float] | None:
    """The worker's lender, the key of the call that this thread runs, and since when it does."""
    key = getattr(thread_state, "key", None)
    if key is None:
        return None
    try:
        lender = getattr(get_worker(), "slot_lender", None)
    except ValueError:
        return None
    return None if lender is None else (lender, key, thread_state.start_time)
