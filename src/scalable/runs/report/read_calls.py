"""Rows about the tasks of a run, read once for all parts of a report. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from scalable.runs import Calls, WorkSpan
from scalable.runs.report.histograms import TaskValues
from scalable.runs.report.spans import Spans
from scalable.runs.report.usage import Peaks
from scalable.runs.streams import Row, in_parts


class ReadCalls:
    """Contents of the rows about the tasks of a run.
    They are read once, because a record may have millions of rows and decodes them at each
    iteration. ``in_graph`` is True if a task waited for another.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.calls, self.spans, self.values = Calls(), Spans(), TaskValues()
        self.peaks, self.work = Peaks(), WorkSpan()
        self.in_graph = False
        for some in in_parts(rows):
            for reader in (self.calls, self.spans, self.values, self.peaks, self.work):
                reader.add(some)
            self.in_graph = self.in_graph or any("after" in row for row in some)

    @property
    def last_moment(self) -> float:
        """Time of the last row in epoch seconds, or 0 without any."""
        return max(0.0, self.calls.last_moment or 0.0)
