"""The parts of the report of a run, from which text, page and JSON are rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalable.report.causes import Cause
from scalable.report.chain import Chain
from scalable.report.comparison import Comparison
from scalable.report.environment import Environment
from scalable.report.histograms import TaskDistributions
from scalable.report.timeline import Timeline
from scalable.report.usage import PoolUse
from scalable.telemetry import Summary


@dataclass(frozen=True)
class ReportParts:
    """Everything that is told about one run.

    Attributes
    ----------
    summary
        Summary of the run.
    planned
        Predictions of the plan beside the actual values.
    timeline
        Workers over time.
    pools
        Use of each pool.
    tasks
        Distributions of the task names with the longest total time.
    causes, other_failures
        Most frequent causes of failures, and the number of failures with other causes.
    chain
        Longest chain of calls that waited for each other, or None.
    environment
        Versions, machine and manifest.
    advice
        Advice for the next run, as sentences.
    """

    summary: Summary
    planned: Comparison
    timeline: Timeline
    pools: tuple[PoolUse, ...] = ()
    tasks: tuple[TaskDistributions, ...] = ()
    causes: tuple[Cause, ...] = ()
    other_failures: int = 0
    chain: Chain | None = None
    environment: Environment = field(default_factory=Environment)
    advice: tuple[str, ...] = ()
