"""Append-only records of runs, and their summaries. :class:`RunRecord` documents the rows.
A run is one session of a workflow on a cluster, recorded as a directory of JSON files.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.quantiles import Durations, Quantiles, quantile
    from scalable.telemetry.calls import Calls, each_call
    from scalable.telemetry.directory import (
        EndStatus,
        RunDirectory,
        amend_status,
        require_writable,
    )
    from scalable.telemetry.earlier_run import CallRecord, EarlierRun
    from scalable.telemetry.failed import Cause, FailedRow, causes
    from scalable.telemetry.finding import find_run, list_runs
    from scalable.telemetry.history import read_history
    from scalable.telemetry.measurements import WorkSpan
    from scalable.telemetry.overview import (
        Kept,
        RunOverview,
        chosen_runs,
        remove_runs,
        run_overviews,
    )
    from scalable.telemetry.part import RunPart
    from scalable.telemetry.reading import RunRecord, RunTail, read_run
    from scalable.telemetry.streams import STREAMS
    from scalable.telemetry.summarizing import (
        NO_TAG,
        REASON_CLOSED,
        REASON_LOST,
        summarize,
        summary_of,
    )
    from scalable.telemetry.summary import (
        CostSummary,
        FailureClass,
        FailureSummary,
        PoolSummary,
        ScalingSummary,
        Summary,
        TaskNameSummary,
    )

__all__ = [
    "NO_TAG",
    "REASON_CLOSED",
    "REASON_LOST",
    "STREAMS",
    "CallRecord",
    "Calls",
    "Cause",
    "CostSummary",
    "Durations",
    "EarlierRun",
    "EndStatus",
    "FailedRow",
    "FailureClass",
    "FailureSummary",
    "Kept",
    "PoolSummary",
    "Quantiles",
    "RunDirectory",
    "RunOverview",
    "RunPart",
    "RunRecord",
    "RunTail",
    "ScalingSummary",
    "Summary",
    "TaskNameSummary",
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
        "scalable.quantiles": (
            "Durations",
            "quantile",
            "Quantiles",
        ),
        "scalable.telemetry.calls": (
            "Calls",
            "each_call",
        ),
        "scalable.telemetry.directory": (
            "amend_status",
            "EndStatus",
            "require_writable",
            "RunDirectory",
        ),
        "scalable.telemetry.earlier_run": (
            "CallRecord",
            "EarlierRun",
        ),
        "scalable.telemetry.failed": (
            "Cause",
            "causes",
            "FailedRow",
        ),
        "scalable.telemetry.finding": (
            "find_run",
            "list_runs",
        ),
        "scalable.telemetry.history": ("read_history",),
        "scalable.telemetry.measurements": ("WorkSpan",),
        "scalable.telemetry.overview": (
            "chosen_runs",
            "Kept",
            "remove_runs",
            "run_overviews",
            "RunOverview",
        ),
        "scalable.telemetry.part": ("RunPart",),
        "scalable.telemetry.reading": (
            "read_run",
            "RunRecord",
            "RunTail",
        ),
        "scalable.telemetry.streams": ("STREAMS",),
        "scalable.telemetry.summarizing": (
            "NO_TAG",
            "REASON_CLOSED",
            "REASON_LOST",
            "summarize",
            "summary_of",
        ),
        "scalable.telemetry.summary": (
            "CostSummary",
            "FailureClass",
            "FailureSummary",
            "PoolSummary",
            "ScalingSummary",
            "Summary",
            "TaskNameSummary",
        ),
    },
)
