"""Lending of slots: a call that waits for other calls lets another call run in its slot.

A slot is room for one call on a worker. Only workers with an attribute ``slot_lender`` lend slots;
on other workers the functions in here do nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol

from scalable.protocol.dask_seams.worker import current_call

#: Longest time in seconds for which a waiting thread sleeps, because an interrupt reaches a thread
#: only when it is awake.
INTERRUPTIBLE_S = 0.25


class CallInterrupted(BaseException):
    """Raised in a call that was cancelled or ran longer than its time limit."""


class Lender(Protocol):
    """Object that lends the slots of one worker; its methods run in the worker's event loop."""

    @property
    def loop(self) -> Any:
        """Event loop of the worker."""

    def lends(self, key: Any) -> bool:
        """Return whether a call waits, and its slot is lent or offered; for any thread."""

    def lend(self, key: Any) -> None:
        """Lend the slot of a call that waits."""

    def watch(self, key: Any) -> None:
        """Watch a call that has made other calls: it may wait for them unseen."""

    def watch_all(self) -> None:
        """Watch all running calls: one of them has made calls in a thread of its own."""

    async def take_back(self, key: Any) -> None:
        """Wait until a call that has lent its slot has a slot again."""


@contextmanager
def slot_lent() -> Iterator[None]:
    """Lend the slot of the call in this thread while the block runs; do nothing outside a call."""
    here = _current_call()
    if here is None:
        yield
        return
    lender, key = here
    lender.loop.add_callback(lender.lend, key)
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
        lender, key = here
        wait_in_call(lender.loop, lender.take_back, key)


def take_lent_slot_back() -> None:
    """Do as :func:`take_slot_back`, and ask the event loop only if the slot is lent."""
    here = _current_call()
    if here is not None and here[0].lends(here[1]):
        take_slot_back()


def wait_in_call(loop: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine and wait for it, like Dask's ``sync``, but let an interrupt end the wait.

    Parameters
    ----------
    loop
        Event loop in which the coroutine runs.
    func, *args, **kwargs
        Coroutine function and its arguments.
    """
    # A traceback may keep the frame of this function, but must not keep the awaited future.
    waited: list[Callable[[], Any]] = [partial(func, *args, **kwargs)]
    del func, args, kwargs

    async def run() -> Any:
        try:
            return await waited[0]()
        except asyncio.CancelledError as error:
            clear_frames(error.__traceback__)  # they refer to each other, and to the future
            raise

    future = asyncio.run_coroutine_threadsafe(run(), loop.asyncio_loop)
    try:
        while not future.done():
            concurrent.futures.wait([future], INTERRUPTIBLE_S)
    except BaseException:
        future.cancel()
        raise
    finally:
        waited.clear()
    return future.result()


def in_call() -> bool:
    """Return whether this thread runs a call on a worker that lends slots."""
    return _current_call() is not None


def made_calls(owner: Lender | None) -> Any:
    """Record that a call has made other calls; it may wait for them unseen.

    Parameters
    ----------
    owner
        Lender of the worker whose calls alone use the client; None for other clients. Calls that
        are made outside a call with such a client come from a thread that a call has started.

    Returns
    -------
    object
        Key of the call in this thread; None outside a call.
    """
    here = _current_call()
    if here is not None:
        lender, key = here
        lender.loop.add_callback(lender.watch, key)
        return key
    if owner is not None:
        owner.loop.add_callback(owner.watch_all)
    return None


def _current_call() -> tuple[Lender, Any] | None:
    """Return the worker's lender, and the key of the call in this thread.

    Return None outside a call, and if the worker lends no slots.
    """
    here = current_call()
    if here is None:
        return None
    worker, key = here
    lender = getattr(worker, "slot_lender", None)
    return None if lender is None else (lender, key)
