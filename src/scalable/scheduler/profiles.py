"""What each call took, for whoever holds its future; kept beside the scheduler as long as that."""

from __future__ import annotations

import time
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import TaskState

from scalable.protocol.dask_seams.scheduler import startstops
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import PROFILE, TASK_ANNOTATION, measured
from scalable.protocol.operations import PROFILES


class Profiles(SchedulerPlugin):
    """Remembers the numbers of calls that have ended, until the scheduler forgets the calls.

    Parameters
    ----------
    scheduler
        Whose calls these are.
    """

    name = PROFILES

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ready_at: dict[Any, float] = {}
        self._rows: dict[Any, tuple[Any, ...]] = {}
        offer(scheduler, {Handler.PROFILE: self.profile})

    async def start(self, scheduler: Scheduler) -> None:
        """Say that profiles are kept."""
        self.restart(scheduler)

    def restart(self, scheduler: Scheduler) -> None:
        """Say so again: a scheduler that restarts forgets what it was told."""
        self._ready_at.clear()
        self._rows.clear()
        scheduler.set_metadata(keys=[self.name], value=True)

    def transition(self, key: Any, start: str, finish: str, *_: Any, **details: Any) -> None:
        """Take note of what became of a call."""
        if finish in ("processing", "no-worker", "queued"):
            if start in ("waiting", "released"):
                self._ready_at[key] = time.time()
                self._rows.pop(key, None)
        elif finish == "memory" and start == "processing":
            self._end(key, "succeeded", details)
        elif finish == "erred":
            self._end(key, "failed", details)
        elif finish == "forgotten":
            self._ready_at.pop(key, None)
            self._rows.pop(key, None)

    def _end(self, key: Any, state: str, details: dict[str, Any]) -> None:
        task: TaskState = self._scheduler.tasks[key]
        ready_at = self._ready_at.pop(key, None)
        began, ended, transfer_s, cpu_s, memory, _ = measured(startstops(details))
        worker = self._scheduler.workers.get(details.get("worker") or "")
        times: tuple[float | None, ...] = (time.time(), None, None, None)
        if began is not None and ended is not None:
            queued_s = None if ready_at is None else max(0.0, began - ready_at - transfer_s)
            times = (ended, queued_s, transfer_s, ended - began)
        name = (task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name
        tag = next(iter(task.resource_restrictions or ()), None)
        place = None if worker is None else str(worker.name)
        self._rows[key] = (str(name), tag, place, state, *times, cpu_s, memory)

    def profile(self, key: Any) -> dict[str, Any] | None:
        """The numbers of a call; None where it has not ended, or was forgotten."""
        row = self._rows.get(key)
        return None if row is None else dict(zip(PROFILE, row, strict=True))
