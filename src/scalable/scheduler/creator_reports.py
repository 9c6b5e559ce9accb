"""Reports of the process that created a cluster, if the cluster stops with that process."""

from __future__ import annotations

import time

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer
from scalable.scheduler.managers import Managers


class CreatorReports:
    """Time of the last report of a cluster's creator."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._made_at = time.monotonic()
        self._last: float | None = None
        offer(scheduler, {Handler.CREATOR_LIVES: self.lives})

    def lives(self) -> None:
        self._last = time.monotonic()

    @property
    def is_apart(self) -> bool:
        """True if the creator reports itself, because the managers are other processes."""
        return self._last is not None

    def silent_s(self, managers: Managers) -> float:
        """Return the seconds since the creator last reported.
        A creator that has never reported runs the managers in its own process, so their reports
        count.
        """
        if self._last is not None:
            return time.monotonic() - self._last
        seen = max((manager.last_seen for manager in managers), default=self._made_at)
        return time.monotonic() - seen
