"""Time limits after which a cluster stops."""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributed import Scheduler

from scalable.dask_compat.scheduler import count_tasks_without_worker
from scalable.units import format_duration


@dataclass(frozen=True)
class Limits:
    """Time limits of a cluster in seconds, where None means no limit."""

    #: Time without work after which the cluster stops.
    idle_timeout_s: float | None = None
    #: Time after its start at which the cluster stops, even if it has work.
    time_to_live_s: float | None = None
    #: Time without a manager's heartbeat after which its idle workers retire.
    manager_grace_s: float = 1800.0


class Lifetime:
    """Age of one cluster, and the time since it was last active.
    Activity is an unfinished task, a client that connects or disconnects, or a change of the
    desired counts. A client that only stays connected does not count.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._began = self._active_at = time.monotonic()
        self._seen: tuple[int, int] = (0, 0)

    def look(self, ordered_at: float) -> str | None:
        """Return why the cluster must stop, or None. ``ordered_at`` is in monotonic seconds."""
        now = time.monotonic()
        scheduler = self._scheduler
        seen = (scheduler.transition_counter, len(scheduler.clients))
        if seen != self._seen or self._unfinished():
            self._active_at = now
        self._seen = seen
        self._active_at = max(self._active_at, ordered_at)
        limits = self.limits
        if limits.time_to_live_s is not None and now - self._began > limits.time_to_live_s:
            return f"its time to live of {format_duration(limits.time_to_live_s)} has passed"
        if limits.idle_timeout_s is not None and now - self._active_at > limits.idle_timeout_s:
            return f"it had no work for {format_duration(limits.idle_timeout_s)}"
        return None

    def _unfinished(self) -> bool:
        scheduler = self._scheduler
        working = any(ws.processing for ws in scheduler.workers.values())
        return working or count_tasks_without_worker(scheduler) > 0

    def ends_at(self) -> tuple[float | None, float | None]:
        """Return when time to live and idle timeout expire, in epoch seconds (None: no limit)."""
        offset = time.time() - time.monotonic()
        live, idle = self.limits.time_to_live_s, self.limits.idle_timeout_s
        return (
            None if live is None else self._began + live + offset,
            None if idle is None else self._active_at + idle + offset,
        )
