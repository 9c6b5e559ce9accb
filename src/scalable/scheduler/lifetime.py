"""When a cluster that nobody looks after ends by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributed import Scheduler

from scalable.protocol.dask_seams.scheduler import count_tasks_without_worker
from scalable.units import format_duration


@dataclass(frozen=True)
class Limits:
    """How long a cluster may live.

    Attributes
    ----------
    idle_timeout_s
        Seconds without work after which it ends; None for never.
    time_to_live_s
        Seconds after its start at which it ends whatever it does; None for never.
    manager_grace_s
        Idle workers of a manager that has been silent for so many seconds retire.
    """

    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    manager_grace_s: float = 1800.0


class Lifetime:
    """Watches for how long a scheduler has had nothing to do.

    Work is any call that has not ended. A client that connects and an order to scale count as
    activity too; a client that only stays connected does not.

    Parameters
    ----------
    scheduler
        What is watched.
    limits
        How long it may live.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._began = self._active_at = time.monotonic()
        self._seen: tuple[int, int] = (0, 0)

    def look(self, ordered_at: float) -> str | None:
        """Why the cluster has to end now, or None.

        Parameters
        ----------
        ordered_at
            Monotonic seconds at which somebody last scaled it.
        """
        now = time.monotonic()
        scheduler = self._scheduler
        seen = (scheduler.transition_counter, len(scheduler.clients))
        if seen != self._seen or self._unfinished():
            self._active_at = now
        self._seen = seen
        self._active_at = max(self._active_at, ordered_at)
        limits = self.limits
        if limits.time_to_live_s is not None and now - self._began > limits.time_to_live_s:
            return f"its time to live of {format_duration(limits.time_to_live_s)} is over"
        if limits.idle_timeout_s is not None and now - self._active_at > limits.idle_timeout_s:
            return f"it had no work for {format_duration(limits.idle_timeout_s)}"
        return None

    def _unfinished(self) -> bool:
        scheduler = self._scheduler
        working = any(ws.processing for ws in scheduler.workers.values())
        return working or count_tasks_without_worker(scheduler) > 0

    def ends_at(self) -> tuple[float | None, float | None]:
        """Epoch seconds of the end of its time to live, and of its end if nothing happens."""
        offset = time.time() - time.monotonic()
        live, idle = self.limits.time_to_live_s, self.limits.idle_timeout_s
        return (
            None if live is None else self._began + live + offset,
            None if idle is None else self._active_at + idle + offset,
        )
