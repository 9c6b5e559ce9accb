"""Times and memory of each finished task, kept until the scheduler forgets the task."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import PROFILE
from scalable.protocol.operations import PROFILES
from scalable.scheduler.ledger import Call, EndedCall, Listener

#: Number of profiles kept of tasks that the scheduler has forgotten.
KEPT_FORGOTTEN = 5_000


class Profiles(Listener):
    """Keeps the profiles of finished tasks, for clients that still hold their futures."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ready_at: dict[Any, float] = {}
        self._rows: dict[Any, tuple[Any, ...]] = {}
        self._forgotten: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()
        offer(scheduler, {Handler.PROFILE: self.profile})

    def restarted(self, scheduler: Scheduler) -> None:
        """Drop all profiles, and restore the metadata that a starting scheduler has dropped.
        The metadata announces to clients that the scheduler keeps profiles.
        """
        self._ready_at.clear()
        self._rows.clear()
        self._forgotten.clear()
        scheduler.set_metadata(keys=[PROFILES], value=True)

    def ready(self, call: Call) -> None:
        self._ready_at[call.key] = time.time()
        self._rows.pop(call.key, None)

    def ended(self, end: EndedCall) -> None:
        call = end.call
        ready_at = self._ready_at.pop(call.key, None)
        began, ended, transfer_s, cpu_s, memory, *_ = end.measured
        worker = self._scheduler.workers.get(end.address or "")
        times: tuple[float | None, ...] = (time.time(), None, None, None)
        if began is not None and ended is not None:
            queued_s = None if ready_at is None else max(0.0, began - ready_at - transfer_s)
            times = (ended, queued_s, transfer_s, ended - began)
        place = None if worker is None else str(worker.name)
        state = "succeeded" if end.succeeded else "failed"
        self._rows[call.key] = (call.name, call.tag, place, state, *times, cpu_s, memory)

    def ready_at(self, key: Any) -> float | None:
        """Return when a task became ready, in epoch seconds, or None if it is not ready."""
        return self._ready_at.get(key)

    def forgotten(self, call: Call) -> None:
        """Drop the profile of a task. The latest of these are kept for :meth:`earlier`."""
        self._ready_at.pop(call.key, None)
        row = self._rows.pop(call.key, None)
        if row is not None:
            self._forgotten[call.key] = row
            if len(self._forgotten) > KEPT_FORGOTTEN:
                self._forgotten.popitem(last=False)

    def profile(self, key: Any) -> dict[str, Any] | None:
        """Return the profile of a task, or None if it is unfinished or forgotten."""
        row = self._rows.get(key)
        return None if row is None else dict(zip(PROFILE, row, strict=True))

    def earlier(self, key: Any) -> dict[str, Any] | None:
        row = self._forgotten.get(key)
        return None if row is None else dict(zip(PROFILE, row, strict=True))
