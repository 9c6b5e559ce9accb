"""Errors of tasks whose workers were lost, with the reasons: subclasses of ``KilledWorker``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from distributed.scheduler import KilledWorker

from scalable.units import as_written, like

#: Number of times that a task may run out of memory before it fails.
MOST_OUT_OF_MEMORY = 2
#: Factor by which the advised memory exceeds the measured memory of a task.
_MARGIN = 1.1


class OutOfMemory(KilledWorker):
    """A task used more memory than its worker has.

    ``used`` and ``limit`` are in bytes. ``component`` is the one whose memory it is, and ``others``
    the number of other tasks that ran on the worker.
    """

    def __init__(
        self,
        task: Any,
        last_worker: Any,
        allowed_failures: int,
        used: int,
        limit: int,
        component: str,
        others: int = 0,
    ) -> None:
        super().__init__(task, last_worker, allowed_failures)
        self.args = (task, last_worker, allowed_failures, used, limit, component, others)

    def of_call(self, task: Any) -> OutOfMemory:
        """Return the same error for a task with another name."""
        return OutOfMemory(task, *self.args[1:])

    def __str__(self) -> str:
        task, _, _, used, limit, component, others = self.args
        beside = f" and {others} other calls of its worker" if others else ""
        component = f"of component {component!r}" if component else "of its worker"
        # Workers stop themselves a little below their limit.
        more = "more than" if used > limit else "up"
        return (
            f"call {task!r}{beside} used {more} {as_written(limit)}, the memory {component}; "
            f"it got to {like(limit, used)}; set memory: {advised(limit, max(used, limit))}"
        )


class LostWorkers(KilledWorker):
    """A task has failed because its workers were lost. ``reasons`` are (worker, reason) pairs."""

    def __init__(
        self,
        task: Any,
        last_worker: Any,
        allowed_failures: int,
        reasons: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(task, last_worker, allowed_failures)
        self.args = (task, last_worker, allowed_failures, tuple(map(tuple, reasons)))

    def __str__(self) -> str:
        task, last, allowed, reasons = self.args
        workers: dict[str, list[str]] = {}
        for name, reason in reasons:
            workers.setdefault(reason, []).append(name)
        shown = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in workers.items())
        shown = shown or f"the last was {getattr(last, 'name', last)}, for an unknown reason"
        count = f"{allowed + 1} workers were lost while they ran it"
        return f"call {task!r} is given up: {count} ({shown})"


def advised(limit: int, used: int) -> str:
    """Return the memory to request, in the limit's unit, for a task that used ``used`` bytes."""
    wanted = used * _MARGIN
    step = 10.0 ** math.floor(math.log10(wanted)) / 2
    return like(limit, math.ceil(wanted / step) * step)
