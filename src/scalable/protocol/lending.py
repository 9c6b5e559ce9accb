"""Lending of slots of waiting tasks. Does nothing on workers without ``slot_lender``."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from traceback import clear_frames
from typing import Any

from scalable.dask_compat.worker import current_call
from scalable.protocol.synchronous import run_until_done, runs_here

#: Maximum seconds for which a waiting thread sleeps, because an interrupt reaches a thread only
#: when it is awake.
INTERRUPTIBLE_S = 0.25
#: The :class:`scalable.worker.slots.SlotLender` of a worker.
Lender = Any


class CallInterrupted(BaseException):
    """Raised in a task that was cancelled or ran longer than its time limit."""


@contextmanager
def slot_lent() -> Iterator[None]:
    """Lend the slot of this thread's task in the block. Does nothing outside a task."""
    here = _current_call()
    if here is None:
        yield
        return
    lender, key = here
    lender.loop.add_callback(lender.lend, key)
    try:
        yield
    except CallInterrupted:
        raise  # the task stops, so it needs no slot
    except BaseException:
        take_slot_back()
        raise
    take_slot_back()


def take_slot_back() -> None:
    """Wait until this thread's task has a slot again, if its slot was lent."""
    here = _current_call()
    if here is not None:
        lender, key = here
        wait_in_call(lender.loop, lender.take_back, key)


def take_lent_slot_back() -> None:
    """Take back the slot as :func:`take_slot_back` does, using the event loop only if needed."""
    here = _current_call()
    if here is not None and here[0].lends(here[1]):
        take_slot_back()


def wait_in_call(loop: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a coroutine and wait for it, like Dask's ``sync``, but stop waiting on an interrupt."""
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
        if runs_here():
            run_until_done(future)
        while not future.done():
            concurrent.futures.wait([future], INTERRUPTIBLE_S)
    except BaseException:
        future.cancel()
        raise
    finally:
        waited.clear()
    return future.result()


def in_call() -> bool:
    """Return whether this thread runs a task on a worker that lends slots."""
    return _current_call() is not None


def made_calls(owner: Lender | None) -> Any:
    """Record that this thread's task has submitted tasks, and return its key, or None.
    ``owner`` is the lender of the only worker whose tasks use the client, or None.
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
    """Return the lender and this thread's task, or None if there is no task or lender."""
    here = current_call()
    if here is None:
        return None
    worker, key = here
    lender = getattr(worker, "slot_lender", None)
    return None if lender is None else (lender, key)
