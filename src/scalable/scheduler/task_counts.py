"""Numbers of tasks by name and state, updated with each event of the task log."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from distributed import Scheduler

from scalable.model.cache_outcomes import CacheTally
from scalable.model.overview import TaskSums
from scalable.runs.calls import FOUND
from scalable.scheduler.task_log import (
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
#: Number of lasting rows, the rows of readers that record them over time: of the first names, and
#: of prefixes. Their sums never fall.
LASTING_ROWS = 100
#: Maximum number of characters of a task name. The rest is cut off.
LONGEST_NAME = 200
OTHERS = "(other names)"
#: Prefix of a name, up to the first digit.
_BEGINNING = re.compile(r"\D+")

# Phases of a task.
_BLOCKED, _READY, _DONE, _FAILED, _CANCELLED, _CACHED = range(6)


def row_for(name: str, tag: str | None, rows: Collection[Any], most: int) -> str:
    """Return the name of the row for another name, up to ``most`` of names and of prefixes."""
    if len(rows) < most:
        return name
    if name != OTHERS and not name.endswith("*"):
        beginning = _BEGINNING.match(name)
        name = f"{beginning[0] if beginning else ''}*"  # such as ``fit-*``
    return name if (name, tag) in rows or len(rows) < 2 * most else OTHERS


class NameRow:
    """Tasks of one name and tag. ``names`` is the number of names that share the row.
    ``phases`` counts blocked, ready or running, done, failed, cancelled, and cache hits. ``logs``
    and ``squares`` sum the logarithms of the running times and their squares.
    """

    __slots__ = ("counted", "lasting", "logs", "name", "names", "phases", "squares", "sums", "tag")

    def __init__(self, name: str, tag: str | None, lasting: str) -> None:
        self.name = name
        self.tag = tag
        #: Name of the lasting row that includes this one.
        self.lasting = lasting
        self.names = 0
        self.phases = [0] * 6
        self.sums = TaskSums()
        self.logs = self.squares = 0.0
        # What is stored for a task in each phase: one object for all tasks of the row.
        self.counted = tuple((self, phase, 1) for phase in range(6))

    @property
    def unfinished(self) -> int:
        return self.phases[_BLOCKED] + self.phases[_READY]

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithms of the running times, or None for fewer than two."""
        measured = self.sums["duration_s"].tasks
        if measured < 2:
            return None
        variance = (self.squares - self.logs**2 / measured) / (measured - 1)
        return math.sqrt(max(0.0, variance))

    def measure(self, values: Mapping[str, float | None], count: int = 1) -> None:
        """Add the measurements of one task, or of all tasks of a bundle."""
        self.sums.measure(values, count)
        seconds = values.get("duration_s")
        if seconds is not None:
            log = math.log(max(seconds / count, 1e-6))
            self.logs += log * count
            self.squares += log * log * count


class NameCounts(Listener):
    """Counts the tasks of a scheduler by name and phase. A bundle counts as its tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._rows: dict[tuple[str, str | None], NameRow] = {}
        self._named: dict[tuple[str, str | None], NameRow] = {}
        self._lasting = set[tuple[str, str | None]]()
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
        shown = row_for(name, tag, self._rows, KEPT_NAMES)
        row = self._rows.get((shown, tag))
        if row is None:
            lasting = row_for(shown, tag, self._lasting, LASTING_ROWS)
            self._lasting.add((lasting, tag))
            row = self._rows[shown, tag] = NameRow(shown, tag, lasting)
        if len(self._named) < 20 * KEPT_NAMES:  # later names are resolved by the rule above again
            self._named[name, tag] = row
            row.names += 1
        return row

    # Events of the task log -----------------------------------------------------------------------

    def submitted(self, calls: list[LoggedTask]) -> None:
        row = self.row_for(calls[0].name, calls[0].tag)
        blocked, new = row.counted[_BLOCKED], 0
        for call in calls:
            if call.counted is None:
                if call.bundle is None:
                    call.counted, new = blocked, new + 1
                else:
                    self._put(call, _BLOCKED)
        row.phases[_BLOCKED] += new

    def waiting(self, call: LoggedTask) -> None:
        self._put(call, _BLOCKED)

    left = waiting  # released before it finished, it may run again

    def ready(self, call: LoggedTask) -> None:
        if call.counted is None or call.counted[2] != 1:
            self._put(call, _READY)
            return
        row, before, _ = call.counted  # of a single task: ten thousand may arrive at once
        row.phases[before] -= 1
        row.phases[_READY] += 1
        call.counted = row.counted[_READY]

    def ended(self, end: EndedTask) -> None:
        call, bundle = end.call, end.measured.bundle
        if call.is_known:
            return
        if call.bundle is None and not end.is_hit:
            row = self._put(call, _DONE if end.succeeded else _FAILED)
            if row is not None:
                row.measure(end.measurements)
            return
        row, phase, count = call.counted or (self.row_for(call.name, call.tag), _DONE, 0)
        row.phases[phase] -= count
        call.counted = (row, _DONE, 0)
        if end.is_hit:  # counted with its outcome
            return
        if bundle is None:
            row.phases[_FAILED] += sum(failed.count for failed in end.failures)
        elif bundle["calls"]:
            row.phases[_DONE] += bundle["calls"] - bundle["failed"]
            row.phases[_FAILED] += bundle["failed"]
            if bundle.get("rows"):
                for state, _, values in end.in_bundle():
                    if state != FOUND:
                        row.measure(values)
            else:
                row.measure({**end.measurements, "duration_s": bundle["total_s"]}, bundle["calls"])

    def remembered(self, heard: HeardOutcomes) -> None:
        """Add up cache outcomes, and count the tasks that did not run as hits."""
        for outcome in heard.outcomes:
            self.cached_calls.add(heard.name[:LONGEST_NAME], outcome)
        found = sum(outcome.count for outcome in heard.outcomes if outcome.is_hit)
        if found:
            self.row_for(heard.name, heard.tag).phases[_CACHED] += found

    def given_up(self, given_up: GivenUp) -> None:
        """Count tasks of a lost bundle as failed. They no longer count as unfinished."""
        call: LoggedTask = given_up.call
        row = self.row_for(call.name, call.tag) if call.counted is None else call.counted[0]
        row.phases[_FAILED] += len(given_up.failures)

    def forgotten(self, call: LoggedTask) -> None:
        if call.counted is None:
            return
        row, phase, count = call.counted
        if phase in (_BLOCKED, _READY):
            row.phases[phase] -= count
            if call.bundle is None or call.is_cancelled_bundle:
                row.phases[_CANCELLED] += count

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Count all unfinished tasks as cancelled, because a restart drops them."""
        for call in self._log:
            if call.counted is not None and call.counted[1] in (_BLOCKED, _READY):
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
