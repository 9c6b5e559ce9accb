"""The reports of the process that has made a cluster, if the cluster ends with that process."""

from __future__ import annotations

import time

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer
from scalable.scheduler.managers import Managers


class CreatorReports:
    """The last sign of life of a cluster's creator.

    Parameters
    ----------
    scheduler
        Scheduler of the cluster.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._made_at = time.monotonic()
        self._last: float | None = None
        offer(scheduler, {Handler.CREATOR_LIVES: self.lives})

    def lives(self) -> None:
        """Note that the creator lives."""
        self._last = time.monotonic()

    @property
    def is_apart(self) -> bool:
        """Whether the managers are other processes than the creator, who reports by itself."""
        return self._last is not None

    def silent_s(self, managers: Managers) -> float:
        """Return the seconds since the creator was last known to live.

        A creator that has never reported has the managers in its own process: what they report
        counts as its report.

        Parameters
        ----------
        managers
            The managers of the cluster.
        """
        if self._last is not None:
            return time.monotonic() - self._last
        seen = max((manager.last_seen for manager in managers), default=self._made_at)
        return time.monotonic() - seen
