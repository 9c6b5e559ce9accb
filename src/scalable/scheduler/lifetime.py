"""Limits after which a cluster ends by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass

from distributed import Scheduler

from scalable.protocol.dask_seams.scheduler import count_tasks_without_worker
from scalable.units import format_duration


@dataclass(frozen=True)
class Limits:
    """Limits of the lifetime of a cluster.

    Attributes
    ----------
    idle_timeout_s
        Seconds without work after which the cluster ends; None for no limit.
    time_to_live_s
        Seconds after its start at which the cluster ends even if it has work; None for no limit.
    manager_grace_s
        Seconds of silence of a manager after which its idle workers retire.
    """

    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    manager_grace_s: float = 1800.0


class Lifetime:
    """Lifetime of one scheduler, and the time since it last had work.

    Work is any call that has not ended. A client that connects and an order to scale count as
    activity too; a client that only stays connected does not.

    Parameters
    ----------
    scheduler
        The scheduler.
    limits
        Limits of its lifetime.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.limits = limits
        self._scheduler = scheduler
        self._began = self._active_at = time.monotonic()
        self._seen: tuple[int, int] = (0, 0)

    def look(self, ordered_at: float) -> str | None:
        """Return the reason for which the cluster has to end now, or None.

        Parameters
        ----------
        ordered_at
            Monotonic seconds of the last change of its wanted counts.
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
        """Return when the time to live and when the idle time end, in seconds since 1970."""
        offset = time.time() - time.monotonic()
        live, idle = self.limits.time_to_live_s, self.limits.idle_timeout_s
        return (
            None if live is None else self._began + live + offset,
            None if idle is None else self._active_at + idle + offset,
        )
