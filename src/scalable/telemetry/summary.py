"""The nouns that a run adds up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scalable.quantiles import Durations, Quantiles


@dataclass(frozen=True)
class TaskNameSummary:
    """The calls of one task name.

    Attributes
    ----------
    count, failed
        Different calls, and those of them whose last final state is failed.
    tags
        Pools they were sent to, in alphabetical order.
    duration_s
        Running time in seconds, without the queue, of the calls that ran to an end, good or bad.
    queued_s
        Time in the queue in seconds.
    peak_memory
        Bytes; None where it was not measured.
    cpu_s
        CPU time of all these calls in seconds; None where it was not measured.
    """

    count: int
    failed: int
    tags: tuple[str, ...]
    duration_s: Durations | None
    queued_s: Quantiles | None
    peak_memory: Quantiles | None
    cpu_s: float | None


@dataclass(frozen=True)
class PoolSummary:
    """The workers of one tag; ``started`` is ``removed`` + ``final``.

    Attributes
    ----------
    started
        Workers that connected.
    removed
        Those that went before the session's end.
    final
        Those that were there at the end.
    requested
        Workers that were asked for.
    lost
        Those of ``removed`` that went without being asked to.
    lost_reasons
        Why -> how many of ``lost``.
    """

    started: int = 0
    removed: int = 0
    final: int = 0
    requested: int = 0
    lost: int = 0
    lost_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ScalingSummary:
    """How often pools grew and shrank."""

    scale_up: int = 0
    scale_down: int = 0


@dataclass(frozen=True)
class FailureClass:
    """Failures of one class, with the first of them as the example.

    Attributes
    ----------
    count
        How many.
    message
        What the example said.
    frame
        Where it was raised, ``file:line in function``: the innermost frame outside installed
        packages. None without a traceback.
    task_id
        The example's call, or None.
    """

    count: int
    message: str
    frame: str | None
    task_id: str | None


@dataclass(frozen=True)
class FailureSummary:
    """All failures, and the failures by class, the most frequent first."""

    count: int = 0
    classes: Mapping[str, FailureClass] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a run adds up to.

    Attributes
    ----------
    run_id, project, target, provider
        Names the run goes by.
    status
        As in :class:`RunRecord`.
    started_at, ended_at
        ISO 8601, UTC; None where not known.
    duration_s
        Seconds from start to end; to the last row where no end was recorded; None without both.
    tasks
        State -> calls by last final state, or by last state where there is none.
    task_names
        Task name -> its calls, in the order of appearance.
    workers
        Tag -> workers, in the order of appearance.
    scaling
        Scaling events.
    scaling_changes
        Rows of scaling.jsonl: every change of a wanted count, who made it and why.
    failures
        Failures by class.
    artifacts
        Rows of artifacts.jsonl.
    reruns
        Ids of the calls that were started more than once.
    exit_code, error
        Of the workflow, where known.
    path
        The run's directory.
    malformed_lines
        Lines of the record that could not be read.
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
    artifacts: tuple[Mapping[str, Any], ...] = ()
    reruns: tuple[str, ...] = ()
    exit_code: int | None = None
    error: str | None = None
    path: str = ""
    malformed_lines: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The attributes, at every depth, as plain JSON values under their own names."""
        return asdict(self, dict_factory=_with_lists)


def _with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in items}
