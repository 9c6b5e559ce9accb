"""Ends calls that run, in whatever thread they do."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

from distributed import Worker

from scalable.protocol.bundles import INTERRUPT_GRACE_S
from scalable.protocol.lending import CallInterrupted

logger = logging.getLogger("scalable.worker")


def raise_in(thread: int) -> None:
    """Raise :class:`CallInterrupted` in a thread, at its next step of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(CallInterrupted)
    )


def take_back(thread: int) -> None:
    """Have a thread go on in peace that was to raise :class:`CallInterrupted` and has not."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)


def interrupt_task(worker: Worker, key: Any) -> None:
    """End a call that is a Dask task of its own; nothing where it has ended."""
    with worker.active_threads_lock:
        # While it is listed its thread is within the call, and cannot have gone on to another.
        thread = next((t for t, active in worker.active_threads.items() if active == key), None)
        if thread is None:
            return
        raise_in(thread)

    def look() -> None:
        if worker.active_threads.get(thread) == key:
            give_up(worker, key, str(key))

    worker.loop.call_later(INTERRUPT_GRACE_S, look)


def give_up(worker: Any, key: Any, shown: str) -> None:
    """Have the worker replaced: a call that does not come back to Python holds its slot.

    Parameters
    ----------
    worker, key
        Where the call runs, and the task that it is or belongs to.
    shown
        What people know it by.
    """
    ends_itself = getattr(worker, "give_up_on_call", None)
    if ends_itself is None:
        logger.warning("a call of %s was to end and does not", shown)
    else:
        ends_itself(str(key), shown)
