"""Plans: worker counts of a deployment, and the predicted time and cost of its work.

The package uses neither I/O, Dask nor providers. Callers pass prices and measurements as values.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

# Not imported lazily, because the module has the same name as the function.
from scalable.planning.notices import notices

if TYPE_CHECKING:
    from scalable.planning.adaptive import (
        PoolBounds,
        adaptive_bounds,
        expectations,
        total_maximum,
    )
    from scalable.planning.counts import conflicts, expected_work, total_limit, worker_counts
    from scalable.planning.knowledge import Knowledge, PastPrediction, Prices
    from scalable.planning.plan import make_plan
    from scalable.planning.request import OBJECTIVES, POLICIES, PlanRequest
    from scalable.pricing.machines import cheapest, packed

__all__ = [
    "OBJECTIVES",
    "POLICIES",
    "Knowledge",
    "PastPrediction",
    "PlanRequest",
    "PoolBounds",
    "Prices",
    "adaptive_bounds",
    "cheapest",
    "conflicts",
    "expectations",
    "expected_work",
    "make_plan",
    "notices",
    "packed",
    "total_limit",
    "total_maximum",
    "worker_counts",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.planning.adaptive": (
            "PoolBounds",
            "adaptive_bounds",
            "expectations",
            "total_maximum",
        ),
        "scalable.planning.request": (
            "OBJECTIVES",
            "POLICIES",
            "PlanRequest",
        ),
        "scalable.planning.counts": (
            "conflicts",
            "expected_work",
            "total_limit",
            "worker_counts",
        ),
        "scalable.planning.knowledge": (
            "Knowledge",
            "PastPrediction",
            "Prices",
        ),
        "scalable.pricing.machines": ("cheapest", "packed"),
        "scalable.planning.plan": ("make_plan",),
    },
)
