"""Interrupts of running tasks."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

from distributed import Worker

from scalable.protocol.bundles import INTERRUPT_GRACE_S
from scalable.protocol.dask_seams.worker import act_on_thread_of, runs_in
from scalable.protocol.lending import CallInterrupted

logger = logging.getLogger("scalable.worker")


def raise_in(thread: int) -> None:
    """Raise :class:`CallInterrupted` in a thread, at its next bytecode instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(CallInterrupted)
    )


def clear_interrupt(thread: int) -> None:
    """Cancel an interrupt that has not been raised in a thread yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)


def interrupt_task(worker: Worker, key: Any) -> None:
    """Interrupt a task that is a Dask task of its own. Already finished is success."""
    thread = act_on_thread_of(worker, key, raise_in)
    if thread is None:
        return
    logger.debug("call %s is interrupted", key)
    replace_if_stuck(worker, key, str(key), lambda: runs_in(worker, thread, key))


def replace_if_stuck(worker: Any, key: Any, shown: str, runs: Callable[[], bool]) -> None:
    """Replace the worker if an interrupted task does not stop in time and holds its slot.

    A task that waits for nested tasks while it stops has lent its slot, and is given more time.
    ``shown`` is the name of the task for messages.
    """

    def check() -> None:
        lender = getattr(worker, "slot_lender", None)
        if runs() and lender is not None and lender.lends(key):
            worker.loop.call_later(INTERRUPT_GRACE_S, check)
        elif runs():
            _give_up(worker, key, shown)

    worker.loop.call_later(INTERRUPT_GRACE_S, check)


def _give_up(worker: Any, key: Any, shown: str) -> None:
    give_up_on_call = getattr(worker, "give_up_on_call", None)
    if give_up_on_call is None:
        logger.warning(
            "a call of %s was interrupted and still runs; this worker cannot be replaced", shown
        )
    else:
        logger.debug("worker %s is given up: call %s does not end", worker.address, shown)
        give_up_on_call(key, shown)
