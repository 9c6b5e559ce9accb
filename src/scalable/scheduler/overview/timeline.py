"""Events for the timeline: calls that ended, failures, changes of counts, and samples."""

from __future__ import annotations

import time
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.events import Event, scaling_row
from scalable.scheduler.ledger import EndedCall, Listener
from scalable.scheduler.overview.recent import RecentEvents

#: Longest text of a field of a failure.
LONGEST_TEXT = 4_000
#: Calls that were shorter than this, in seconds, are joined with the call before them on the same
#: worker, if it has the same name and not more time lies between the two.
JOINED_S = 0.02


class Timeline(Listener):
    """Adds calls that end, failures and decisions to the recent events of a cluster.

    Parameters
    ----------
    scheduler
        Scheduler of the calls.
    recent
        Events of the cluster.
    """

    def __init__(self, scheduler: Scheduler, recent: RecentEvents) -> None:
        self._recent = recent
        self._names = {ws.address: str(ws.name) for ws in scheduler.workers.values()}
        # Address of a worker -> the span that was added last for it.
        self._last: dict[str, list[Any]] = {}

    # Events of the ledger -------------------------------------------------------------------------

    def ended(self, end: EndedCall) -> None:
        """Add the span of a call; the failures of a call are added too."""
        began, ended, _, _, _, bundle = end.measured
        failed = not end.succeeded or bool(bundle and bundle["failed"])
        address = end.address
        if began is not None and ended is not None and address is not None:
            self._span(address, end.call.name, began, ended, failed)
        if not failed:
            return
        for failure in bundle["failures"] if bundle else ():
            told = failure["failure_class"], failure["message"], failure["traceback"]
            self._failure(end, *told)
        task = end.call.task
        # A call that failed only because another one failed is no failure of its own.
        if not end.succeeded and task.exception_blame is task:
            name, message = end.failure()
            # The client sends the calls of a bundle that was lost with its worker again.
            if end.call.bundle is None or name not in ("KilledWorker", "OutOfMemory"):
                self._failure(end, name, message, end.traceback)

    def worker_added(self, worker: WorkerState) -> None:
        """Remember the name of a worker."""
        self._names[worker.address] = str(worker.name)

    def worker_removed(self, address: str) -> None:
        """Forget a worker."""
        self._names.pop(address, None)
        self._last.pop(address, None)

    def _span(self, address: str, name: str, began: float, ended: float, failed: bool) -> None:
        last = self._last.get(address)
        short = ended - began < JOINED_S
        if (
            last is not None
            and short
            and last[1] == name
            and last[4] == failed
            and 0 <= began - last[3] < JOINED_S
        ):
            last[3] = ended
            last[5] += 1
            return
        span = [self._names.get(address, address), name[:200], began, ended, failed, 1]
        self._last[address] = span
        self._recent.add("spans", span)

    def _failure(
        self, end: EndedCall, failure_class: str, message: str, traceback: str | None
    ) -> None:
        call = end.call
        row = {
            "failure_class": failure_class[:200],
            "message": message[:LONGEST_TEXT],
            "timestamp": time.time(),
            "details": {
                "phase": "run",
                "task_id": str(call.key),
                "task_name": call.name[:200],
                "tag": call.tag,
                "worker": self._names.get(end.address or ""),
                "traceback": None if traceback is None else traceback[-LONGEST_TEXT:],
            },
        }
        self._recent.add("failures", row)

    # Other events ---------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Add the failure of a pool or worker, if that is what a manager's event tells."""
        if event.get("stream") == "failures":
            row = {key: value for key, value in event.items() if key != "stream"}
            self._recent.add("failures", row)

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        """Add a change of a pool's wanted count."""
        self._recent.add("decisions", scaling_row(tag, before, after, reason, source))
