"""Dataclasses that make up the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scalable.quantiles import Durations, Quantiles
from scalable.spec.remembered import RememberedTotals
from scalable.telemetry.costs import CostSummary


@dataclass(frozen=True)
class TaskNameSummary:
    """Summary of the calls of one task name.

    Attributes
    ----------
    count, failed
        Number of calls, and number of calls whose last final state is failed. Calls whose
        remembered results were found do not count.
    found
        Number of calls that did not run, because their remembered results were found.
    tags
        Tags of the calls, in alphabetical order.
    duration_s
        Running time in seconds, without the time in the queue, of calls that succeeded or failed.
        None if not measured.
    queued_s
        Time in the queue in seconds; None if not measured.
    peak_memory
        Peak memory in bytes; None if not measured.
    cpu_s
        CPU time of all calls together in seconds; None if not measured.
    """

    count: int
    failed: int
    tags: tuple[str, ...]
    duration_s: Durations | None
    queued_s: Quantiles | None
    peak_memory: Quantiles | None
    cpu_s: float | None
    found: int = 0


@dataclass(frozen=True)
class PoolSummary:
    """Numbers of workers of one tag; ``started`` equals ``removed`` + ``final``.

    Attributes
    ----------
    started
        Number of workers that connected.
    removed
        Number of workers that left before the end of the session.
    final
        Number of workers that stayed until the end.
    requested
        Number of requested workers.
    lost
        Number of workers in ``removed`` that ended unexpectedly.
    lost_reasons
        Reason -> number of workers in ``lost``.
    """

    started: int = 0
    removed: int = 0
    final: int = 0
    requested: int = 0
    lost: int = 0
    lost_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingSummary:
    """Number of times that a pool grew, and number of times that a pool shrank."""

    scale_up: int = 0
    scale_down: int = 0


@dataclass(frozen=True)
class FailureClass:
    """Failures of one class; the first failure serves as the example.

    Attributes
    ----------
    count
        Number of failures.
    message
        Message of the example.
    frame
        Where the example occurred, as ``file:line in function``: the innermost frame that is not in
        an installed package. None without a traceback.
    task_id
        Id of the call that failed in the example, or None.
    arguments, worker, tries
        Arguments of the example as text, its worker, and how often it was begun; see
        :class:`.FailureDetails`.
    """

    count: int
    message: str
    frame: str | None
    task_id: str | None
    arguments: str | None = None
    worker: str | None = None
    tries: int = 1


@dataclass(frozen=True)
class FailureSummary:
    """Failures of calls, workers and pools: their number, and the most frequent class first.

    The error that ended the script is not among them; it is the ``error`` of the summary.
    """

    count: int = 0
    classes: Mapping[str, FailureClass] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """Summary of a run.

    Attributes
    ----------
    run_id, project, target, provider
        Id of the run, and names of its project, target and provider.
    status
        Status of the run, as in :class:`RunRecord`.
    started_at, ended_at
        Times in ISO 8601, UTC; None if not known.
    duration_s
        Seconds from the start to the end of the run. If the end is not recorded, the time of the
        last row counts. None if not known.
    tasks
        State -> number of calls. A call counts in its last final state (succeeded, failed,
        cancelled or found), or in its last state if none is final.
    task_names
        Task name -> summary of its calls, in the order of the first rows.
    workers
        Tag -> summary of its workers, in the order of the first rows.
    scaling
        Number of times that pools grew or shrank.
    scaling_changes
        Rows of scaling.jsonl: each change of a pool's wanted count, with its source and reason.
    failures
        Failures by class.
    cost
        Planned and actual cost; None if no costs were counted.
    artifacts
        Rows of artifacts.jsonl.
    reruns
        Ids of calls that were started more than once.
    rerun_reasons
        Reason -> number of times that a call ran again for it, the most frequent first.
    remembered
        Calls whose results are remembered: hits, misses with their reasons, and the time saved.
    exit_code, error
        Exit code and error of the workflow, if known.
    path
        Directory of the run.
    malformed_lines
        Number of unreadable lines of the record.
    """

    run_id: str
    project: str
    target: str
    provider: str
    status: str
    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    tasks: Mapping[str, int] = field(default_factory=dict)
    task_names: Mapping[str, TaskNameSummary] = field(default_factory=dict)
    workers: Mapping[str, PoolSummary] = field(default_factory=dict)
    scaling: ScalingSummary = field(default_factory=ScalingSummary)
    scaling_changes: tuple[Mapping[str, Any], ...] = ()
    failures: FailureSummary = field(default_factory=FailureSummary)
    cost: CostSummary | None = None
    artifacts: tuple[Mapping[str, Any], ...] = ()
    reruns: tuple[str, ...] = ()
    rerun_reasons: Mapping[str, int] = field(default_factory=dict)
    remembered: RememberedTotals = field(default_factory=RememberedTotals)
    exit_code: int | None = None
    error: str | None = None
    path: str = ""
    malformed_lines: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values, including nested dataclasses."""
        return asdict(self, dict_factory=_with_lists)


def _with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in items}
