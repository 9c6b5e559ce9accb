"""Prediction of when work finishes on connected and starting workers. This module does no I/O.

Work is treated as a fluid shared by the free workers. Only the longest task is indivisible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Maximum number of groups into which similar arrival times of workers (or of work) are merged.
#: This number is precise enough for a decision.
GROUPS = 8


class Portion(NamedTuple):
    """Work that becomes ready at the same time."""

    #: Seconds until the work is ready.
    ready_s: float
    #: Worker-seconds.
    work_s: float
    #: Seconds of the longest task.
    longest_s: float


@dataclass(frozen=True)
class Capacity:
    """Number of workers over time."""

    #: Seconds from now, and number of workers that join then, the soonest first.
    steps: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, connected: int, arriving: Sequence[float], more: int, startup_s: float) -> Capacity:
        """Return the capacity of connected, starting and newly requested workers."""
        steps = [(0.0, float(connected))] if connected else []
        steps += _merged(sorted(arriving))
        if more:
            steps.append((startup_s, float(more)))
        return cls(tuple(sorted(steps)))

    def done_s(self, work_s: float, since_s: float = 0.0) -> float:
        """Return the seconds until work that becomes ready in ``since_s`` is done, or infinity."""
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
        """Return a stream's total waiting seconds, and the seconds until no task waits.
        ``rate(s)`` is the arrival rate in ``s`` seconds from now. ``calls`` is the number of
        workers that the queued tasks fill. The total includes tasks that arrive before the queue is
        empty. Both are inf if more tasks arrive than the workers can run.
        """
        # A worker starts a task when it joins, and whenever one of its tasks finishes. The rate
        # counts as constant after the last worker has joined.
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
    """Return the total seconds waited and the queue after ``seconds`` of constant growth."""
    if queue + grows * seconds >= 0:
        return waited + (queue + grows * seconds / 2) * seconds, queue + grows * seconds
    return waited + queue**2 / -grows / 2, 0.0


def _merged(times: Sequence[float]) -> list[tuple[float, float]]:
    """Merge ascending times into at most :data:`GROUPS` pairs of mean time and count."""
    size = max(1, -(-len(times) // GROUPS))
    chunks = (times[i : i + size] for i in range(0, len(times), size))
    return [(sum(chunk) / len(chunk), float(len(chunk))) for chunk in chunks]


def merged(portions: Iterable[Portion]) -> list[Portion]:
    """Merge portions with similar times into at most :data:`GROUPS`, ordered by time."""
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
    """Return the seconds until all portions are done. They must be ordered by time."""
    # A portion and all later ones take at least the time for their work since it became ready. The
    # latest of these ends is the result.
    latest, after = 0.0, 0.0
    first = capacity.steps[0][0] if capacity.steps else float("inf")
    for portion in reversed(portions):
        after += portion.work_s
        alone = max(first, portion.ready_s) + portion.longest_s
        latest = max(latest, capacity.done_s(after, portion.ready_s), alone)
    return latest
