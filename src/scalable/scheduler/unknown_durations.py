"""Tasks of unknown duration, which Dask's work stealing has to forget with the scheduler."""

from __future__ import annotations

from distributed import Scheduler

from scalable.dask_compat.ended_work import forget_unknown_duration, seams
from scalable.scheduler.ledger import Call, Ledger, Listener


class UnknownDurations(Listener):
    """Makes work stealing forget each task that the scheduler forgets."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        if seams.difference(forget_unknown_duration.__name__) is None:
            Ledger.of(scheduler).listen(self)

    def forgotten(self, call: Call) -> None:
        forget_unknown_duration(self._scheduler, call.task)
