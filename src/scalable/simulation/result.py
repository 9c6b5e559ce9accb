"""Start-up times of simulated workers, and results of simulations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple


@dataclass(frozen=True)
class Startup:
    """Start-up times of workers in seconds.

    Attributes
    ----------
    delay_s
        Typical time from the request of a worker until it connects. With the default ``spread`` the
        mean time is 1.05 times as long.
    billed_s
        Billed part of the delay. It is the last part: billing begins during the start.
    least_s
        Minimum time for which a worker is billed.
    granularity_s
        Seconds to whose multiples the billed time of a worker is rounded up; 0 for no rounding.
    spread
        Smallest and largest delay as multiples of ``delay_s``. Delays are uniformly distributed.
    expected_s
        Delay that policies expect until the first worker has connected. None for ``delay_s``.
    """

    delay_s: float = 1.0
    billed_s: float = 1.0
    least_s: float = 0.0
    spread: tuple[float, float] = (0.8, 1.3)
    expected_s: float | None = None
    granularity_s: float = 0.0

    def paid_s(self, seconds: float) -> float:
        """Return the billed seconds of a worker that ran for the given billed seconds."""
        paid = max(seconds, self.least_s)
        if not self.granularity_s:
            return paid
        return math.ceil(paid / self.granularity_s - 1e-9) * self.granularity_s


class Change(NamedTuple):
    """Change of a pool's worker count: time, counts before and after, and reason."""

    time_s: float
    pool: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes
    ----------
    makespan_s
        Seconds until the last call ended.
    sojourn_s
        Mean seconds from a call's arrival to its end.
    time_s
        ``sojourn_s`` if the workload is a stream (calls that arrive over time), else
        ``makespan_s``.
    cost
        Cost: billed worker-seconds times price, in all pools together.
    changes
        Changes of the pools' worker counts, the oldest first.
    looks
        Number of decisions that the policies made, including decisions without a change.
    workers
        Pool -> pairs (time, number of connected workers), one for each change of the number.
    """

    makespan_s: float
    sojourn_s: float
    time_s: float
    cost: float
    changes: list[Change]
    looks: int
    workers: Mapping[str, list[tuple[float, int]]]

    @property
    def most_workers(self) -> int:
        """Maximum number of workers that were connected at one time, in all pools together."""
        moments: dict[float, dict[str, int]] = {}
        for pool, line in self.workers.items():
            for moment, count in line:
                moments.setdefault(moment, {})[pool] = count
        now: dict[str, int] = {}
        most = 0
        for _, counts in sorted(moments.items(), key=itemgetter(0)):
            now |= counts
            most = max(most, sum(now.values()))
        return most
