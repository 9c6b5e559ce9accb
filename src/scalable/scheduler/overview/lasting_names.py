"""Lasting rows of task names: a name stays in the same row for the life of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add

from scalable.model.overview import CallCounts, TaskOverview
from scalable.scheduler.overview.call_counts import OTHERS, beginning_of

#: Number of task names that have a row each. Tasks of other names are counted by the prefix of the
#: name, in as many rows again, and then in one.
LASTING_ROWS = 100


class LastingNames:
    """Sums up rows of task names in few rows whose names and members never change.
    So a row's numbers of finished tasks never fall, as recorders of time series need it. The first
    names have a row each, later names share rows.
    """

    def __init__(self) -> None:
        self._row_of: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        self._rows: set[tuple[str, str | None]] = set()

    def of(self, tasks: Iterable[TaskOverview]) -> tuple[TaskOverview, ...]:
        """Return the lasting rows with the numbers of the given ones."""
        sums: dict[tuple[str, str | None], list[float]] = {}
        for task in tasks:
            key = task.name, task.tag
            row = self._row_of.get(key) or self._row(*key)
            c = task.counts
            counts = c.running, c.waiting, c.done, c.failed, c.cancelled, c.found
            others = task.names, task.measured, task.queued, task.run_s, task.queued_s
            numbers = (*counts, *others)
            known = sums.get(row)
            # In lists for speed: rows of many names are summed up in the scheduler's event loop.
            sums[row] = list(numbers) if known is None else list(map(add, known, numbers))
        return tuple(_task(name, tag, numbers) for (name, tag), numbers in sums.items())

    def _row(self, name: str, tag: str | None) -> tuple[str, str | None]:
        row = self._row_of.get((name, tag))
        if row is None:
            row = name, tag
            if len(self._rows) >= LASTING_ROWS:
                row = beginning_of(name), tag
            if len(self._rows) >= 2 * LASTING_ROWS and row not in self._rows:
                row = OTHERS, tag
            self._rows.add(row)
            self._row_of[name, tag] = row
        return row


def _task(name: str, tag: str | None, numbers: Sequence[float]) -> TaskOverview:
    *whole, run_s, queued_s = numbers
    *counts, names, measured, queued = map(int, whole)
    mean_s = run_s / measured if measured else None
    mean_queued_s = queued_s / queued if queued else None
    times = measured, run_s, queued, queued_s, mean_queued_s
    return TaskOverview(name, tag, CallCounts(*counts), mean_s, names, *times)
