"""Events for the timeline: calls that ended, failures, changes of counts, and samples."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.events import Event, scaling_row
from scalable.scheduler.failure_rows import failure_rows
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
        timed = end.measured
        if timed.began is not None and timed.ended is not None and end.address is not None:
            failed = not end.succeeded or bool(timed.bundle and timed.bundle["failed"])
            self._span(end.address, end.call.name, timed.began, timed.ended, failed)
        for row in failure_rows(end):
            self._recent.add("failures", _shortened(row))

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

    # Other events ---------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Add the failure of a pool or worker, if that is what a manager's event tells."""
        if event.get("stream") == "failures":
            row = {key: value for key, value in event.items() if key != "stream"}
            self._recent.add("failures", _shortened(row))

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        """Add a change of a pool's wanted count."""
        self._recent.add("decisions", scaling_row(tag, before, after, reason, source))


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a failure with texts of bounded length; of a traceback, the end is kept."""
    short: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            short[key] = _shortened(value)
        elif isinstance(value, str):
            short[key] = value[-LONGEST_TEXT:] if key == "traceback" else value[:LONGEST_TEXT]
        else:
            short[key] = value
    return short
