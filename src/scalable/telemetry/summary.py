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
    """Summary of the tasks of one name. Measured values are None if not measured."""

    #: Without cache hits.
    count: int
    #: Tasks whose last final state is failed.
    failed: int
    #: In alphabetical order.
    tags: tuple[str, ...]
    #: Without queue time, of tasks that succeeded or failed.
    duration_s: Durations | None
    queued_s: Quantiles | None
    #: Bytes.
    peak_memory: Quantiles | None
    #: All tasks together.
    cpu_s: float | None
    #: Number of cache hits.
    found: int = 0


@dataclass(frozen=True)
class PoolSummary:
    """Numbers of workers of one tag, where ``started`` equals ``removed`` + ``final``."""

    started: int = 0
    #: Workers that left before the session closed.
    removed: int = 0
    #: Workers that stayed until the session closed.
    final: int = 0
    requested: int = 0
    #: Workers in ``removed`` that stopped unexpectedly.
    lost: int = 0
    lost_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingSummary:
    """Number of times that a pool grew, and number of times that a pool shrank."""

    scale_up: int = 0
    scale_down: int = 0


@dataclass(frozen=True)
class FailureClass:
    """Failures of one class, with the first failure as the example."""

    count: int
    message: str
    #: ``file:line in function``: the innermost frame outside installed packages. None without a
    #: traceback.
    frame: str | None
    task_id: str | None
    arguments: str | None = None
    worker: str | None = None
    #: Number of attempts of the example, see :class:`.FailureDetails`.
    tries: int = 1


@dataclass(frozen=True)
class FailureSummary:
    """Failures of tasks, workers and pools, the most frequent class first.
    The error of the script is not among them: it is the ``error`` of the summary.
    """

    count: int = 0
    classes: Mapping[str, FailureClass] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """Summary of a run, where None means unknown."""

    run_id: str
    project: str
    target: str
    provider: str
    #: As in :class:`RunRecord`.
    status: str
    #: ISO 8601, UTC, as ``ended_at``.
    started_at: str | None
    ended_at: str | None
    #: Until the run finished, or its last row if that is not recorded.
    duration_s: float | None
    #: Number of tasks by last final state (succeeded, failed, cancelled or found), or by last state
    #: if none is final.
    tasks: Mapping[str, int] = field(default_factory=dict)
    #: In the order of the first rows, as ``workers`` by tag.
    task_names: Mapping[str, TaskNameSummary] = field(default_factory=dict)
    workers: Mapping[str, PoolSummary] = field(default_factory=dict)
    scaling: ScalingSummary = field(default_factory=ScalingSummary)
    #: Rows of ``scaling.jsonl``: each change of a pool's desired count, with source and reason.
    scaling_changes: tuple[Mapping[str, Any], ...] = ()
    failures: FailureSummary = field(default_factory=FailureSummary)
    #: None if no costs were counted.
    cost: CostSummary | None = None
    #: Rows of ``artifacts.jsonl``.
    artifacts: tuple[Mapping[str, Any], ...] = ()
    #: Ids of tasks that were started more than once.
    reruns: tuple[str, ...] = ()
    #: Number of reruns by reason, the most frequent first.
    rerun_reasons: Mapping[str, int] = field(default_factory=dict)
    #: Cache hits, misses with their reasons, and the time saved.
    remembered: RememberedTotals = field(default_factory=RememberedTotals)
    exit_code: int | None = None
    error: str | None = None
    #: Directory of the run.
    path: str = ""
    #: Number of unreadable lines of the record.
    malformed_lines: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self, dict_factory=_with_lists)


def _with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in items}
