"""What a simulation is told of how workers start, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple


@dataclass(frozen=True)
class Startup:
    """How workers start. Seconds.

    Attributes
    ----------
    delay_s
        From being asked for until connected, on average times 1.05.
    billed_s
        How much of the end of it is paid for.
    least_s
        A worker is paid for at least so long.
    spread
        The delay is uniform between these multiples.
    expected_s
        What a policy is told before the first worker has arrived; by default ``delay_s``.
    """

    delay_s: float = 1.0
    billed_s: float = 1.0
    least_s: float = 0.0
    spread: tuple[float, float] = (0.8, 1.3)
    expected_s: float | None = None


class Change(NamedTuple):
    """A decision that changed a pool."""

    time_s: float
    pool: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class SimulationResult:
    """What a simulation gave.

    Attributes
    ----------
    makespan_s
        When the last call had ended.
    sojourn_s
        Mean time from a call's arrival to its end.
    time_s
        What counts of these two for the workload.
    cost
        Paid worker-seconds times price.
    changes
        The decisions that changed anything, the oldest first.
    looks
        How often policies were asked.
    workers
        Pool -> (time, connected workers), whenever that changes.
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
        """Most workers that were connected at a time, in all pools together."""
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
