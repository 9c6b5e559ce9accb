"""Unfinished tasks of executors, for which a finished script waits.

``concurrent.futures`` waits for its executors at the same moment: before Python runs the functions
registered with ``atexit``, which close sessions and clients.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its part of the exit has to come later
import logging
import os
import sys
import threading
import time
from typing import Any, Protocol

logger = logging.getLogger("scalable.client")

#: Seconds of waiting after which a message is logged.
SAY_AFTER_S = 2.0
LOOK_S = 0.05


class Working(Protocol):
    """Sender of tasks that have not finished."""

    @property
    def unfinished(self) -> int:
        """Number of tasks that wait or run."""

    @property
    def ends_with_script(self) -> bool:
        """True if this process does not wait for the tasks when it exits."""

    def give_up(self) -> None:
        """Cancel all tasks."""


#: Senders with tasks that may not have finished. They must not vanish before, even if the user has
#: kept neither the executor nor a future.
working: set[Working] = set()


def _unfinished() -> int:
    return sum(each.unfinished for each in list(working) if not each.ends_with_script)


def wait_at_exit() -> None:
    """Wait until the tasks of all executors have finished. Ctrl-C, now or before, cancels them."""
    if not _unfinished():
        return
    if not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        try:
            _wait()
        except KeyboardInterrupt:
            logger.debug("interrupted while the calls of executors were awaited")
    if calls := _unfinished():
        logger.warning("%d calls of executors are cancelled", calls)
        for each in list(working):
            each.give_up()


def _wait() -> None:
    say_at: float | None = time.monotonic() + SAY_AFTER_S
    while calls := _unfinished():
        if say_at is not None and time.monotonic() > say_at:
            say_at = None
            logger.warning(
                "the script has ended, and waits for %d calls of its executors; "
                "Ctrl-C cancels them",
                calls,
            )
        time.sleep(LOOK_S)


_threading: Any = threading
_threading._register_atexit(wait_at_exit)  # noqa: SLF001 - as concurrent.futures does
os.register_at_fork(after_in_child=working.clear)
