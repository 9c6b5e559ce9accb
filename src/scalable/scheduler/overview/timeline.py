"""Events for the timeline: finished tasks, failures, changes of counts, and samples."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.events import Event, scaling_row
from scalable.scheduler.failed_calls import GivenUp
from scalable.scheduler.ledger import Call, EndedCall, Listener
from scalable.scheduler.overview.recent import RecentEvents
from scalable.scheduler.recorder import failure_rows

#: Maximum number of characters of a failure's field.
LONGEST_TEXT = 4_000
#: Maximum number of characters of a task's key in a span.
LONGEST_KEY = 300
#: Tasks shorter than this, in seconds, are joined with the task before them on the same worker, if
#: it has the same name. The gap between the two must be shorter too.
JOINED_S = 0.02
#: Number of failure classes that are counted separately, and the name for all others.
COUNTED_CLASSES = 50
OTHER_CLASSES = "(other classes)"
#: Maximum number of characters of a failure class. The rest is cut off.
LONGEST_CLASS = 100


class Timeline(Listener):
    """Adds finished tasks, failures and decisions to the recent events of a cluster.
    ``failures`` counts all by class, ``changes`` the desired-count changes by tag and action.
    """

    def __init__(self, scheduler: Scheduler, recent: RecentEvents) -> None:
        self.failures: Counter[str] = Counter()
        self.changes: dict[str, Counter[str]] = {}
        self.decided: dict[str, dict[str, Any]] = {}
        self._recent = recent
        self._names = {ws.address: str(ws.name) for ws in scheduler.workers.values()}
        # By address of a worker: the span that was added last for it.
        self._last: dict[str, list[Any]] = {}

    # Events of the ledger -------------------------------------------------------------------------

    def ended(self, end: EndedCall) -> None:
        timed = end.measured
        if (
            end.ran
            and timed.began is not None
            and timed.ended is not None
            and end.address is not None
        ):
            failed = not end.succeeded or bool(timed.bundle and timed.bundle["failed"])
            times = timed.began, timed.ended
            self._span(end.address, end.call, times, failed)
        for row in failure_rows(end):
            self._failure(row)

    def given_up(self, given_up: GivenUp) -> None:
        for row in failure_rows(given_up):
            self._failure(row)

    def worker_added(self, worker: WorkerState) -> None:
        self._names[worker.address] = str(worker.name)

    def worker_removed(self, address: str) -> None:
        self._names.pop(address, None)
        self._last.pop(address, None)

    def _span(self, address: str, call: Call, times: tuple[float, float], failed: bool) -> None:
        last = self._last.get(address)
        (began, ended), name = times, call.name[:200]
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
            last[6] = str(call.key)[:LONGEST_KEY]
            return
        key = str(call.key)[:LONGEST_KEY]
        span = [self._names.get(address, address), name, began, ended, failed, 1, key]
        self._last[address] = span
        self._recent.add("spans", span)

    # Other events ---------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Add the failure of a pool or worker, if a manager's event reports one."""
        if event.get("stream") == "failures":
            self._failure({key: value for key, value in event.items() if key != "stream"})

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        row = scaling_row(tag, before, after, reason, source)
        self.changes.setdefault(tag, Counter())[row["action"]] += 1
        self.decided[tag] = row
        self._recent.add("decisions", row)

    def _failure(self, row: dict[str, Any]) -> None:
        name = str(row["failure_class"])[:LONGEST_CLASS]
        if name not in self.failures and len(self.failures) >= COUNTED_CLASSES:
            name = OTHER_CLASSES
        self.failures[name] += int(row.get("count", 1))
        self._recent.add("failures", _shortened(row))


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a failure's row with strings of bounded size. The tail of a traceback is kept."""
    short: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            short[key] = _shortened(value)
        elif isinstance(value, str):
            short[key] = value[-LONGEST_TEXT:] if key == "traceback" else value[:LONGEST_TEXT]
        else:
            short[key] = value
    return short
