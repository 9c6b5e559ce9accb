"""The cheapest counts for a deadline, from an exact solver (HiGHS, through SciPy)."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from scalable.planning.objectives import Problem


def exactly(problem: Problem, most: int, deadline_s: float) -> tuple[int, ...]:
    """Return the cheapest counts with at most `most` workers in each pool."""
    stages, pools = problem.predicted.stages, range(len(problem.bounds.rates))
    options = [(p, w) for p in pools for w in range(1, most + 1)]
    rates = [problem.bounds.rates[p] * w for p, w in options]
    rows, low, high = [], [], []
    for pool in pools:
        rows.append([float(p == pool) for p, _ in options] + [0.0] * len(stages))
        low.append(1.0)
        high.append(1.0)
    for position, stage in enumerate(stages):
        lengths = [-stage.time_s(w) if p == stage.pool else 0.0 for p, w in options]
        for other in stage.before or (None,):
            ends = [float(i == position) - float(i == other) for i in range(len(stages))]
            rows.append(lengths + ends)
            low.append(0.0)
            high.append(np.inf)
    found = milp(
        rates + [0.0] * len(stages),
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=[1] * len(options) + [0] * len(stages),
        bounds=Bounds(0, [1.0] * len(options) + [deadline_s] * len(stages)),
        options={"mip_rel_gap": 1e-6, "time_limit": 60},
    )
    if not found.success:
        raise RuntimeError(f"the exact solver found no counts for {deadline_s} s: {found.message}")
    picked = {p: w for (p, w), x in zip(options, found.x, strict=False) if x > 0.5}
    return tuple(picked[pool] for pool in pools)
