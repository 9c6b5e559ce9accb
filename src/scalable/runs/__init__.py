"""Append-only records of runs, and their summaries. :class:`RunRecord` documents the rows.
A run is one session of a workflow on a cluster, recorded as a directory of JSON files.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.quantiles import Quantiles, quantile
    from scalable.runs.calls import RecordedTasks, WorkSpan, each_call
    from scalable.runs.directory import EndStatus, RunDirectory, amend_status, require_writable
    from scalable.runs.failed import FailedRow, FailureCause, causes
    from scalable.runs.history import EarlierRun, read_history
    from scalable.runs.measurements import CallRecord
    from scalable.runs.overview import (
        KeptRun,
        RunOverview,
        chosen_runs,
        find_run,
        list_runs,
        remove_runs,
        run_overviews,
    )
    from scalable.runs.reading import RunPart, RunRecord, RunTail, read_run
    from scalable.runs.streams import STREAMS
    from scalable.runs.summary import (
        NO_TAG,
        REASON_CLOSED,
        REASON_LOST,
        CostSummary,
        FailureClass,
        FailureSummary,
        PoolSummary,
        ScalingSummary,
        Summary,
        summarize,
        summary_of,
    )

__all__ = [
    "NO_TAG",
    "REASON_CLOSED",
    "REASON_LOST",
    "STREAMS",
    "CallRecord",
    "CostSummary",
    "EarlierRun",
    "EndStatus",
    "FailedRow",
    "FailureCause",
    "FailureClass",
    "FailureSummary",
    "KeptRun",
    "PoolSummary",
    "Quantiles",
    "RecordedTasks",
    "RunDirectory",
    "RunOverview",
    "RunPart",
    "RunRecord",
    "RunTail",
    "ScalingSummary",
    "Summary",
    "WorkSpan",
    "amend_status",
    "causes",
    "chosen_runs",
    "each_call",
    "find_run",
    "list_runs",
    "quantile",
    "read_history",
    "read_run",
    "remove_runs",
    "require_writable",
    "run_overviews",
    "summarize",
    "summary_of",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.quantiles": ("Quantiles", "quantile"),
        "scalable.runs.calls": ("RecordedTasks", "WorkSpan", "each_call"),
        "scalable.runs.directory": (
            "EndStatus",
            "RunDirectory",
            "amend_status",
            "require_writable",
        ),
        "scalable.runs.failed": ("FailedRow", "FailureCause", "causes"),
        "scalable.runs.history": ("EarlierRun", "read_history"),
        "scalable.runs.measurements": ("CallRecord",),
        "scalable.runs.overview": (
            "KeptRun",
            "RunOverview",
            "chosen_runs",
            "find_run",
            "list_runs",
            "remove_runs",
            "run_overviews",
        ),
        "scalable.runs.reading": ("RunPart", "RunRecord", "RunTail", "read_run"),
        "scalable.runs.streams": ("STREAMS",),
        "scalable.runs.summary": (
            "NO_TAG",
            "REASON_CLOSED",
            "REASON_LOST",
            "CostSummary",
            "FailureClass",
            "FailureSummary",
            "PoolSummary",
            "ScalingSummary",
            "Summary",
            "summarize",
            "summary_of",
        ),
    },
)
