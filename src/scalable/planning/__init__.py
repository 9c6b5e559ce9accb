"""Plans: worker counts, time and cost of a deployment and its work. Pure.

No I/O, no Dask, no providers: prices and history arrive as values.
"""

from scalable.planning.adaptive import (
    AdaptiveBounds,
    adaptive_bounds,
    expectations,
    total_maximum,
)
from scalable.planning.counts import conflicts, expected_work, worker_counts, written_total
from scalable.planning.knowledge import Knowledge, PastPrediction, Prices
from scalable.planning.memory import judge_memory
from scalable.planning.notices import notices
from scalable.planning.plan import make_plan
from scalable.planning.request import OBJECTIVES, POLICIES, PlanRequest

__all__ = [
    "OBJECTIVES",
    "POLICIES",
    "AdaptiveBounds",
    "Knowledge",
    "PastPrediction",
    "PlanRequest",
    "Prices",
    "adaptive_bounds",
    "conflicts",
    "expectations",
    "expected_work",
    "judge_memory",
    "make_plan",
    "notices",
    "total_maximum",
    "worker_counts",
    "written_total",
]
