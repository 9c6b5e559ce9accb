"""Numbers of tasks by name and state, updated with each event of the task log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from distributed import Scheduler

from scalable.dask_compat.tasks import is_given_back
from scalable.model.cache_outcomes import CacheTally
from scalable.scheduler.task_log import (
    READY,
    EndedTask,
    GivenUp,
    HeardOutcomes,
    Listener,
    LoggedTask,
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
        # By key of a task: its row, its phase, and the number of tasks that it stands for.
        self._calls: dict[Any, tuple[NameRow, int, int]] = {}
        # Keys of the unfinished tasks that were observed running.
        self._begun: set[Any] = set()
        self.cached_calls = CacheTally()
        for task in scheduler.tasks.values():
            if task.state in READY:
                self.ready(LoggedTask(task))
            elif task.state == "waiting":
                self.waiting(LoggedTask(task))

    def __iter__(self) -> Iterator[NameRow]:
        return iter(self._rows.values())

    def row_of(self, key: Any) -> NameRow | None:
        counted = self._calls.get(key)
        return None if counted is None else counted[0]

    def runs(self, key: Any) -> None:
        """Record that a task runs. A bundle forgotten after that counts as cancelled."""
        if key in self._calls:
            self._begun.add(key)

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
            if call.is_known:
                continue
            if call.key not in self._calls and call.task.state not in ("memory", "erred"):
                self._put(call, _WAITING)

    def waiting(self, call: LoggedTask) -> None:
        if not call.is_known:
            self._put(call, _WAITING)

    def ready(self, call: LoggedTask) -> None:
        if not call.is_known:
            self._put(call, _READY)

    def left(self, call: LoggedTask) -> None:
        """Count a task as waiting, since it was released before it finished and may run again."""
        if not call.is_known:
            self._put(call, _WAITING)

    def ended(self, end: EndedTask) -> None:
        call = end.call
        self._begun.discard(call.key)
        began, ended, bundle = end.measured.began, end.measured.ended, end.measured.bundle
        if call.is_known:
            return
        if end.is_hit:  # counted with its outcome
            row = self._take(call.key) or self.row_for(call.name, call.tag)
            self._calls[call.key] = (row, _DONE, 0)
            return
        if call.bundle is None:
            row = self._put(call, _DONE if end.succeeded else _FAILED)
            if began is not None and ended is not None:
                row.measure(ended - began)
                row.wait(end)
            return
        row = self._take(call.key) or self.row_for(call.name, call.tag)
        self._calls[call.key] = (row, _DONE, 0)
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
        call = given_up.call
        row = self.row_of(call.key) or self.row_for(call.name, call.tag)
        row.phases[_FAILED] += len(given_up.failures)

    def forgotten(self, call: LoggedTask) -> None:
        counted = self._calls.pop(call.key, None)
        if counted is None:
            return
        row, phase, count = counted
        begun = call.key in self._begun
        self._begun.discard(call.key)
        if phase in (_WAITING, _READY):
            row.phases[phase] -= count
            # The client resends the tasks of a bundle that it takes back, or that was given back,
            # in another bundle.
            if call.bundle is None or (begun and not is_given_back(call.task)):
                row.phases[_CANCELLED] += count

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Count all unfinished tasks as cancelled, because a restart drops them."""
        for row, phase, count in self._calls.values():
            if phase in (_WAITING, _READY):
                row.phases[phase] -= count
                row.phases[_CANCELLED] += count
        self._calls.clear()
        self._begun.clear()

    def _put(self, call: LoggedTask, phase: int) -> NameRow:
        """Count a task in a phase, and return its row."""
        counted = self._calls.get(call.key)
        if counted is None:
            count = 1 if call.bundle is None else int(call.bundle["calls"])
            row = self.row_for(call.name, call.tag)
        else:
            row, before, count = counted
            if before == phase:
                return row
            row.phases[before] -= count
        row.phases[phase] += count
        self._calls[call.key] = row.counted[phase] if count == 1 else (row, phase, count)
        return row

    def _take(self, key: Any) -> NameRow | None:
        counted = self._calls.pop(key, None)
        if counted is None:
            return None
        row, phase, count = counted
        row.phases[phase] -= count
        return row
