"""Numbers of tasks by name and state, updated with each event of the task log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from distributed import Scheduler

from scalable.dask_compat.tasks import is_given_back
from scalable.model.cache_outcomes import CacheTally
from scalable.scheduler.task_log import (
    ENDED,
    READY,
    EndedTask,
    GivenUp,
    HeardOutcomes,
    Listener,
    LoggedTask,
    TaskLog,
)

#: Number of task names that have a row each. Tasks of other names are counted by the prefix of the
#: name, or, with too many prefixes, in one row.
KEPT_NAMES = 1000
#: Maximum number of characters of a task name. The rest is cut off.
LONGEST_NAME = 200
OTHERS = "(other names)"
#: Prefix of a name, up to the first digit.
_BEGINNING = re.compile(r"\D+")

# Phases of a task.
_WAITING, _READY, _DONE, _FAILED, _CANCELLED, _FOUND = range(6)


def beginning_of(name: str) -> str:
    """Return the name of the row for names with the same prefix, such as ``fit-*``."""
    if name == OTHERS or name.endswith("*"):
        return name
    beginning = _BEGINNING.match(name)
    return f"{beginning[0] if beginning else ''}*"


class NameRow:
    """Tasks of one name and tag. ``names`` is the number of names that share the row.
    ``phases`` counts blocked, ready or running, done, failed, cancelled, and cache hits. ``logs``
    and ``squares`` sum the logarithms of the running times and their squares. ``queued`` counts
    finished tasks with a known queue time, and ``queued_s`` sums it.
    """

    __slots__ = (
        "counted", "logs", "measured", "name", "names", "phases", "queued", "queued_s", "squares",
        "tag", "total_s",
    )  # fmt: skip

    def __init__(self, name: str, tag: str | None) -> None:
        self.name = name
        self.tag = tag
        self.names = 0
        self.phases = [0] * 6
        self.measured = 0
        self.total_s = self.logs = self.squares = 0.0
        self.queued = 0
        self.queued_s = 0.0
        # What is stored for a task in each phase: one object for all tasks of the row.
        self.counted = tuple((self, phase, 1) for phase in range(6))

    @property
    def unfinished(self) -> int:
        return self.phases[_WAITING] + self.phases[_READY]

    @property
    def ended(self) -> tuple[int, int, int, int]:
        """Numbers of tasks that are done, failed, cancelled, and cache hits."""
        done, failed, cancelled, found = self.phases[_DONE:]
        return done, failed, cancelled, found

    @property
    def mean_s(self) -> float | None:
        return self.total_s / self.measured if self.measured else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithms of the running times, or None for fewer than two."""
        if self.measured < 2:
            return None
        variance = (self.squares - self.logs**2 / self.measured) / (self.measured - 1)
        return math.sqrt(max(0.0, variance))

    def measure(self, seconds: float, count: int = 1) -> None:
        """Add the running time of one task, or the mean running time of several."""
        log = math.log(max(seconds, 1e-6))
        self.measured += count
        self.total_s += seconds * count
        self.logs += log * count
        self.squares += log * log * count

    def wait(self, end: EndedTask, count: int = 1) -> None:
        ready_at, began = end.call.ready_at, end.measured.began
        if ready_at is not None and began is not None:
            self.queued += count
            self.queued_s += count * max(0.0, began - ready_at - end.measured.transfer_s)


class NameCounts(Listener):
    """Counts the tasks of a scheduler by name and phase. A bundle counts as its tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._rows: dict[tuple[str, str | None], NameRow] = {}
        self._named: dict[tuple[str, str | None], NameRow] = {}
        self._log = TaskLog.of(scheduler)
        self.cached_calls = CacheTally()
        for task in scheduler.tasks.values():
            if task.state in READY:
                self.ready(self._log.call(task.key))
            elif task.state == "waiting":
                self.waiting(self._log.call(task.key))
        self._log.listen(self)

    def __iter__(self) -> Iterator[NameRow]:
        return iter(self._rows.values())

    def row_for(self, name: str, tag: str | None) -> NameRow:
        """Return the row for a name and tag, creating it if necessary."""
        name = name[:LONGEST_NAME]
        row = self._named.get((name, tag))
        if row is not None:
            return row
        shown = name
        if len(self._rows) >= KEPT_NAMES:
            shown = beginning_of(name)
            if (shown, tag) not in self._rows and len(self._rows) >= 2 * KEPT_NAMES:
                shown = OTHERS
        row = self._rows.get((shown, tag))
        if row is None:
            row = self._rows[shown, tag] = NameRow(shown, tag)
        if len(self._named) < 20 * KEPT_NAMES:  # later names are resolved by the rule above again
            self._named[name, tag] = row
            row.names += 1
        return row

    # Events of the task log -----------------------------------------------------------------------

    def submitted(self, calls: list[LoggedTask]) -> None:
        for call in calls:
            if call.counted is None and call.task.state not in ENDED:
                self._put(call, _WAITING)

    def waiting(self, call: LoggedTask) -> None:
        self._put(call, _WAITING)

    def ready(self, call: LoggedTask) -> None:
        self._put(call, _READY)

    def left(self, call: LoggedTask) -> None:
        """Count a task as waiting, since it was released before it finished and may run again."""
        self._put(call, _WAITING)

    def ended(self, end: EndedTask) -> None:
        call, bundle = end.call, end.measured.bundle
        call.seen_running = False
        if call.is_known:
            return
        if call.bundle is None and not end.is_hit:
            row = self._put(call, _DONE if end.succeeded else _FAILED)
            began, ended = end.measured.began, end.measured.ended
            if row is not None and began is not None and ended is not None:
                row.measure(ended - began)
                row.wait(end)
            return
        row = self._take(call) or self.row_for(call.name, call.tag)
        call.counted = (row, _DONE, 0)
        if end.is_hit:  # counted with its outcome
            return
        if bundle is None:
            row.phases[_FAILED] += sum(failed.count for failed in end.failures)
        elif bundle["calls"]:
            row.phases[_DONE] += bundle["calls"] - bundle["failed"]
            row.phases[_FAILED] += bundle["failed"]
            row.measure(bundle["total_s"] / bundle["calls"], bundle["calls"])
            row.wait(end, bundle["calls"])

    def remembered(self, heard: HeardOutcomes) -> None:
        """Add up cache outcomes, and count the tasks that did not run as hits."""
        for outcome in heard.outcomes:
            self.cached_calls.add(heard.name[:LONGEST_NAME], outcome)
        found = sum(outcome.count for outcome in heard.outcomes if outcome.is_hit)
        if found:
            self.row_for(heard.name, heard.tag).phases[_FOUND] += found

    def given_up(self, given_up: GivenUp) -> None:
        """Count tasks of a lost bundle as failed. They no longer count as waiting."""
        call: LoggedTask = given_up.call
        row = self.row_for(call.name, call.tag) if call.counted is None else call.counted[0]
        row.phases[_FAILED] += len(given_up.failures)

    def forgotten(self, call: LoggedTask) -> None:
        if call.counted is None:
            return
        row, phase, count = call.counted
        if phase in (_WAITING, _READY):
            row.phases[phase] -= count
            # The client resends the tasks of a bundle that it takes back, or that was given back,
            # in another bundle.
            if call.bundle is None or (call.seen_running and not is_given_back(call.task)):
                row.phases[_CANCELLED] += count

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Count all unfinished tasks as cancelled, because a restart drops them."""
        for call in self._log:
            if call.counted is not None and call.counted[1] in (_WAITING, _READY):
                row, phase, count = call.counted
                row.phases[phase] -= count
                row.phases[_CANCELLED] += count

    def _put(self, call: LoggedTask, phase: int) -> NameRow | None:
        """Count a task in a phase, and return its row, or None for a known result."""
        row: NameRow
        if call.is_known:
            return None
        if call.counted is None:
            count = call.calls
            row = self.row_for(call.name, call.tag)
        else:
            row, before, count = call.counted
            if before == phase:
                return row
            row.phases[before] -= count
        row.phases[phase] += count
        call.counted = row.counted[phase] if count == 1 else (row, phase, count)
        return row

    def _take(self, call: LoggedTask) -> NameRow | None:
        row: NameRow
        if call.counted is None:
            return None
        row, phase, count = call.counted
        row.phases[phase] -= count
        return row
