"""Prediction of the time when known work ends on connected and starting workers. No I/O.

The model treats work as a fluid that the free workers share: it ignores that calls are indivisible,
except for the longest call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Maximum number of groups into which similar arrival times of workers (or of work) are merged.
#: This number is precise enough for a decision.
GROUPS = 8


class Portion(NamedTuple):
    """Work that becomes ready at the same time.

    The fields are the seconds until the work is ready, its worker-seconds, and the seconds of its
    longest call.
    """

    ready_s: float
    work_s: float
    longest_s: float


@dataclass(frozen=True)
class Capacity:
    """Number of workers over time.

    Attributes
    ----------
    steps
        Pairs (seconds from now, workers that join then), the soonest first.
    """

    steps: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, connected: int, arriving: Sequence[float], more: int, startup_s: float) -> Capacity:
        """Return the capacity of connected workers, starting workers and workers requested now.

        Parameters
        ----------
        connected
            Number of connected workers.
        arriving
            Seconds until each starting worker is expected to connect.
        more
            Number of workers that would be requested now.
        startup_s
            Seconds until the workers requested now connect.
        """
        steps = [(0.0, float(connected))] if connected else []
        steps += _merged(sorted(arriving))
        if more:
            steps.append((startup_s, float(more)))
        return cls(tuple(sorted(steps)))

    def done_s(self, work_s: float, since_s: float = 0.0) -> float:
        """Return the seconds from now until some work is done; inf without workers.

        Parameters
        ----------
        work_s
            Worker-seconds of the work.
        since_s
            Seconds from now until the work is ready.
        """
        left, at, workers = work_s, since_s, 0.0
        for start, count in self.steps:
            if start > at:
                done = (start - at) * workers
                if done >= left and workers:
                    break
                left -= done
                at = start
            workers += count
        if left <= 0:
            return at
        return at + left / workers if workers else float("inf")

    def queue_s(
        self, calls: float, call_s: float, busy: float, rate: Callable[[float], float]
    ) -> tuple[float, float]:
        """Return the total waiting time of a stream's calls, and the time until the queue is empty.

        A stream is a pool's work if more calls may arrive at any time. The total covers the queued
        calls and all calls that arrive until the queue is empty. A worker starts a call when it
        joins and whenever one of its calls ends. The model treats calls as a fluid.

        Parameters
        ----------
        calls
            Number of workers that the queued calls would fill.
        call_s
            Running time of a call in seconds.
        busy
            Number of connected workers that run calls.
        rate
            Function that takes seconds from now and returns the calls that arrive per second at
            that time. After the last worker has joined, the rate counts as constant.

        Returns
        -------
        tuple
            Total waiting seconds of all calls, and seconds from now until no call waits; both inf
            if more calls arrive than the workers can run.
        """
        queue, at, workers, waited = calls, 0.0, 0.0, 0.0
        for start, count in self.steps:
            grows = rate((at + start) / 2) - workers / call_s
            waited, queue = _grown(queue, grows, start - at, waited)
            free = max(0.0, count - busy) if start <= 0 else count
            queue = max(0.0, queue - free)
            at, workers = start, workers + count
        if not queue:
            return waited, at
        drains = workers / call_s - rate(at)
        if drains <= 0:
            return float("inf"), float("inf")
        return waited + queue**2 / drains / 2, at + queue / drains


def _grown(queue: float, grows: float, seconds: float, waited: float) -> tuple[float, float]:
    """Return the total seconds waited and the queue after it grew or shrank at a constant rate."""
    if queue + grows * seconds >= 0:
        return waited + (queue + grows * seconds / 2) * seconds, queue + grows * seconds
    return waited + queue**2 / -grows / 2, 0.0


def _merged(times: Sequence[float]) -> list[tuple[float, float]]:
    """Merge ascending times into at most :data:`GROUPS` pairs (mean time, number of times)."""
    size = max(1, -(-len(times) // GROUPS))
    chunks = (times[i : i + size] for i in range(0, len(times), size))
    return [(sum(chunk) / len(chunk), float(len(chunk))) for chunk in chunks]


def merged(portions: Iterable[Portion]) -> list[Portion]:
    """Merge portions with similar times; return at most :data:`GROUPS`, the soonest first."""
    ordered = sorted(portions)
    size = max(1, -(-len(ordered) // GROUPS))
    chunks = (ordered[i : i + size] for i in range(0, len(ordered), size))
    return [
        Portion(
            sum(p.ready_s for p in chunk) / len(chunk),
            sum(p.work_s for p in chunk),
            max(p.longest_s for p in chunk),
        )
        for chunk in chunks
    ]


def finish_s(capacity: Capacity, portions: Sequence[Portion]) -> float:
    """Return the seconds from now until all the work is done.

    For each portion there is an earliest end: this portion and all later portions cannot be done
    before the workers have had time for their work since the portion became ready. The result is
    the latest of these ends.

    Parameters
    ----------
    capacity
        Number of workers over time.
    portions
        Portions of the work, the soonest first.
    """
    latest, after = 0.0, 0.0
    first = capacity.steps[0][0] if capacity.steps else float("inf")
    for portion in reversed(portions):
        after += portion.work_s
        alone = max(first, portion.ready_s) + portion.longest_s
        latest = max(latest, capacity.done_s(after, portion.ready_s), alone)
    return latest
