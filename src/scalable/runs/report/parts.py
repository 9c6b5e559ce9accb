"""Parts of the report of a run, from which text, page and JSON are rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalable.runs import Summary
from scalable.runs.report.advice import Cause, Chain
from scalable.runs.report.comparison import Comparison
from scalable.runs.report.environment import Environment
from scalable.runs.report.histograms import TaskDistributions
from scalable.runs.report.timeline import Timeline
from scalable.runs.report.usage import PoolUse


@dataclass(frozen=True)
class ReportParts:
    """Contents of the report of one run."""

    summary: Summary
    #: Predictions of the plan next to the actual values.
    planned: Comparison
    #: Workers over time.
    timeline: Timeline
    pools: tuple[PoolUse, ...] = ()
    #: Distributions of the task names with the longest total time.
    tasks: tuple[TaskDistributions, ...] = ()
    #: Most frequent causes of failures, and the number of failures with other causes.
    causes: tuple[Cause, ...] = ()
    other_failures: int = 0
    #: Longest chain of tasks that waited for each other, or None.
    chain: Chain | None = None
    environment: Environment = field(default_factory=Environment)
    #: Advice for the next run, as sentences.
    advice: tuple[str, ...] = ()
