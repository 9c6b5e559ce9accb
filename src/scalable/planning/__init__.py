"""Makes plans: a request and what is known about its work become counts and costs. Pure.

No I/O, no Dask, no providers: prices and history arrive as values.
"""

from scalable.planning.adaptive import (
    AdaptiveBounds,
    adaptive_bounds,
    expectations,
    total_maximum,
)
from scalable.planning.aims import OBJECTIVES, POLICIES, Aims
from scalable.planning.counts import conflicts, expected_work, worker_counts, written_total
from scalable.planning.knowledge import Knowledge, Outcome, Prices
from scalable.planning.memory import judge_memory
from scalable.planning.notices import notices
from scalable.planning.plan import make_plan

__all__ = [
    "OBJECTIVES",
    "POLICIES",
    "AdaptiveBounds",
    "Aims",
    "Knowledge",
    "Outcome",
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
