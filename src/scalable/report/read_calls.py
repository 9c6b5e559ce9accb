"""The rows about the calls of a run, read once for all parts of a report. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from scalable.report.histograms import TaskValues
from scalable.report.spans import Spans
from scalable.report.usage import Peaks
from scalable.telemetry import Calls, WorkSpan
from scalable.telemetry.streams import Row, in_parts


class ReadCalls:
    """Contents of the rows about the calls of a run.

    A record may have millions of rows, which are decoded anew each time that they are iterated, so
    that they are read once.

    Parameters
    ----------
    rows
        Rows of tasks.jsonl.

    Attributes
    ----------
    calls
        The calls, for the summary.
    spans
        Times in which they ran.
    values
        Measured values by task name.
    peaks
        Peak memory by tag.
    work
        Time from the first submission to the last end.
    in_graph
        Whether a call waited for another.
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
