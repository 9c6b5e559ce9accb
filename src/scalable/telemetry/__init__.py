"""What happened: the append-only records that each run leaves, and what they add up to.

``directory`` writes a run, ``reading`` reads it (also one that crashed, also while it goes on),
``finding`` knows where runs are, ``bundled`` tells what the row of a bundle says of its calls,
``history`` reads what the latest ones tell the next plan, ``summarizing`` adds up a record into a
``summary``. What a row holds is said at ``RunRecord``.

Not here: where rows come from (the engine's plug-ins), how a summary is shown (``report``), and
what the next plan makes of it (``planning``).
"""

from scalable.quantiles import Durations, Quantiles, quantile
from scalable.telemetry.bundled import each_call
from scalable.telemetry.directory import EndStatus, RunDirectory, amend_status
from scalable.telemetry.finding import find_run, list_runs
from scalable.telemetry.history import CallRecord, EarlierRun, read_history, work_span_s
from scalable.telemetry.reading import RunRecord, RunTail, read_run
from scalable.telemetry.streams import STREAMS
from scalable.telemetry.summarizing import NO_TAG, REASON_CLOSED, REASON_LOST, summarize
from scalable.telemetry.summary import (
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
    "Durations",
    "EarlierRun",
    "EndStatus",
    "FailureClass",
    "FailureSummary",
    "PoolSummary",
    "Quantiles",
    "RunDirectory",
    "RunRecord",
    "RunTail",
    "ScalingSummary",
    "Summary",
    "TaskNameSummary",
    "amend_status",
    "each_call",
    "find_run",
    "list_runs",
    "quantile",
    "read_history",
    "read_run",
    "summarize",
    "work_span_s",
]
