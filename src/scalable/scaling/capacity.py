"""When work ends on workers of which some are still starting. Pure.

Work is taken as a fluid that free workers share; only the longest call is taken as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Arrivals of workers, and of work, are merged into so many groups: enough for one look.
GROUPS = 8


class Portion(NamedTuple):
    """Work that becomes ready together: in how many seconds, worker-seconds, and longest call."""

    ready_s: float
    work_s: float
    longest_s: float


@dataclass(frozen=True)
class Capacity:
    """Workers over time.

    Attributes
    ----------
    steps
        (seconds from now, workers that join then), the soonest first.
    """

    steps: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, connected: int, arriving: Sequence[float], more: int, startup_s: float) -> Capacity:
        """Workers that are there, those that arrive in so many seconds, and others asked for now.

        Parameters
        ----------
        connected
            Workers that are there.
        arriving
            For each worker on its way, in how many seconds it is expected.
        more
            Workers that would be asked for now.
        startup_s
            Seconds until those are there.
        """
        steps = [(0.0, float(connected))] if connected else []
        steps += _merged(sorted(arriving))
        if more:
            steps.append((startup_s, float(more)))
        return cls(tuple(sorted(steps)))

    def done_s(self, work_s: float, since_s: float = 0.0) -> float:
        """When work that is ready since then is done, in seconds from now; inf without workers.

        Parameters
        ----------
        work_s
            Worker-seconds.
        since_s
            When it is ready, in seconds from now.
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
        """How long calls wait, those that are queued and those that come until none waits.

        A worker that joins starts one at once, and every worker one for each that ends; calls are
        taken as a fluid.

        Parameters
        ----------
        calls
            That are queued, as a number of workers that they fill.
        call_s
            Seconds of a call.
        busy
            Of the workers that are there, how many run calls.
        rate
            Calls that come for each second, in so many seconds; later than the last worker the
            rate stays what it is then.

        Returns
        -------
        tuple
            Seconds of all calls together, and when none waits any more, in seconds from now; inf
            where more come than the workers can run.
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
    """Seconds waited and the queue, after so long a time in which it grows (shrinks) so fast."""
    if queue + grows * seconds >= 0:
        return waited + (queue + grows * seconds / 2) * seconds, queue + grows * seconds
    return waited + queue**2 / -grows / 2, 0.0


def _merged(times: Sequence[float]) -> list[tuple[float, float]]:
    """(time, count) of at most :data:`GROUPS` groups of neighbours."""
    size = max(1, -(-len(times) // GROUPS))
    chunks = (times[i : i + size] for i in range(0, len(times), size))
    return [(sum(chunk) / len(chunk), float(len(chunk))) for chunk in chunks]


def merged(portions: Iterable[Portion]) -> list[Portion]:
    """At most :data:`GROUPS` portions, the soonest first; those of one group are ready together."""
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
    """When all the work is done, in seconds from now.

    Whatever is ready from some moment on has to be done after that moment: the latest of the ends
    that this gives for each moment.

    Parameters
    ----------
    capacity
        The workers.
    portions
        The work, the soonest first.
    """
    latest, after = 0.0, 0.0
    first = capacity.steps[0][0] if capacity.steps else float("inf")
    for portion in reversed(portions):
        after += portion.work_s
        alone = max(first, portion.ready_s) + portion.longest_s
        latest = max(latest, capacity.done_s(after, portion.ready_s), alone)
    return latest
