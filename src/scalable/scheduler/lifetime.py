"""Time limits after which a cluster ends by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributed import Scheduler

from scalable.protocol.dask_seams.scheduler import count_tasks_without_worker
from scalable.units import format_duration


@dataclass(frozen=True)
class Limits:
    """Time limits of a cluster.

    Attributes
    ----------
    idle_timeout_s
        Seconds without work after which the cluster ends; None for no limit.
    time_to_live_s
        Seconds after its start at which the cluster ends, even if it has work; None for no limit.
    manager_grace_s
        Seconds without a heartbeat from a manager after which its idle workers retire.
    """

    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    manager_grace_s: float = 1800.0


class Lifetime:
    """The age of one cluster, and the time since it was last active.

    A cluster is active while a call has not ended, when a client connects or disconnects, and when
    its wanted worker counts change. A client that only stays connected is no activity.

    Parameters
    ----------
    scheduler
        Scheduler of the cluster.
    limits
        Time limits of the cluster.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._began = self._active_at = time.monotonic()
        self._seen: tuple[int, int] = (0, 0)

    def look(self, ordered_at: float) -> str | None:
        """Return why the cluster has to end now; None if it may go on.

        Parameters
        ----------
        ordered_at
            Time of the last change of the wanted worker counts, in monotonic seconds.
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
            return f"its time to live of {format_duration(limits.time_to_live_s)} has passed"
        if limits.idle_timeout_s is not None and now - self._active_at > limits.idle_timeout_s:
            return f"it had no work for {format_duration(limits.idle_timeout_s)}"
        return None

    def _unfinished(self) -> bool:
        scheduler = self._scheduler
        working = any(ws.processing for ws in scheduler.workers.values())
        return working or count_tasks_without_worker(scheduler) > 0

    def ends_at(self) -> tuple[float | None, float | None]:
        """Return when the time to live ends and when the idle timeout ends, each None for no limit.

        Both are in seconds since 1970.
        """
        offset = time.time() - time.monotonic()
        live, idle = self.limits.time_to_live_s, self.limits.idle_timeout_s
        return (
            None if live is None else self._began + live + offset,
            None if idle is None else self._active_at + idle + offset,
        )
