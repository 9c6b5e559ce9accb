"""Values to compare simulations with: lower bounds, and schedules that know the future. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from scalable.simulation.result import Startup
from scalable.simulation.workloads import Terms, Workload, dependents_of, topological

#: Number of tried limits of the pools' workers, from one worker to the maximum.
CAP_LEVELS = 12


class Reference(NamedTuple):
    """Time in seconds and cost (price times worker-seconds) to compare a simulation with."""

    time_s: float
    cost: float

    @property
    def product(self) -> float:
        """Product of time and cost, which the objective "balance" minimizes."""
        return self.time_s * self.cost


@dataclass(eq=False)
class ReferenceWorker:
    """Worker: the time since which it is free, and its free slots."""

    free_s: float
    slots: int


def clairvoyant(workload: Workload, startup: Startup, *, ranked: bool = True) -> Reference:
    """Return the best of several schedules that use the true running times and arrivals.

    The function makes a list schedule for each of twelve limits of the pools' workers, from one to
    the maximum in equal ratios. In a graph, the call with the longest remaining path starts first.
    In a stream (calls that arrive over time), calls start in the order of their arrival.

    Workers are requested early enough to be connected when they are needed, but not before the
    simulation begins, so no call starts before ``startup.delay_s``. A worker without calls is kept
    until its next call, or replaced by a new worker if that costs less. All workers start in
    exactly ``delay_s``. The result is not a proven optimum.

    Parameters
    ----------
    workload
        Calls and pools.
    startup
        Start-up times of workers.
    ranked
        Whether calls of a graph start in the order of their longest remaining path. If False, they
        start in the order in which they become ready, as in the simulator.
    """
    levels = []
    for level in range(CAP_LEVELS):
        share = level / (CAP_LEVELS - 1)
        caps = {
            name: max(1, terms.minimum, round(terms.maximum**share))
            for name, terms in workload.pools.items()
        }
        if caps not in levels:
            levels.append(caps)
    ranks = ranks_of(workload) if ranked and not workload.stream else None
    schedules = [
        scheduled(
            workload,
            {name: Line(terms, caps[name], startup) for name, terms in workload.pools.items()},
            [startup.delay_s],
            ranks,
        )
        for caps in levels
    ]
    return min(schedules, key=lambda reference: reference.product)


def lower_bounds(workload: Workload, startup: Startup) -> Reference:
    """Return lower bounds of time and of cost; perhaps no schedule attains them.

    For a graph, the lower bound of the time is one start-up time plus the longest path, or plus the
    work of a pool divided by the pool's maximum if that is more. For a stream it is the mean
    running time plus the mean time that calls wait for the first workers. The lower bound
    of the cost is the work plus one start for each pool with work.
    """
    work: dict[str, float] = {}
    for call in workload.calls:
        work[call.kind.component] = work.get(call.kind.component, 0.0) + call.duration_s
    pools = workload.pools
    cost = sum(
        pools[name].price * (seconds / pools[name].slots + min(startup.billed_s, startup.delay_s))
        for name, seconds in work.items()
    )
    if workload.stream:
        begins = (max(call.arrival_s, startup.delay_s) - call.arrival_s for call in workload.calls)
        alone = fmean(call.duration_s for call in workload.calls)
        return Reference(fmean(begins) + alone, cost)
    longest = max(ranks_of(workload), default=0.0)
    area = (s / (pools[name].maximum * pools[name].slots) for name, s in work.items())
    return Reference(startup.delay_s + max(longest, *area), cost)


def ranks_of(workload: Workload) -> list[float]:
    """Return, for each call, the seconds of the longest path from its start to the graph's end."""
    dependents = dependents_of(workload.calls)
    ranks = [0.0] * len(workload.calls)
    for place in reversed(topological(workload.calls)):
        behind = max((ranks[other] for other in dependents[place]), default=0.0)
        ranks[place] = workload.calls[place].duration_s + behind
    return ranks


def scheduled(
    workload: Workload,
    pools: Mapping[str, Line],
    wakes: Iterable[float],
    ranks: list[float] | None,
) -> Reference:
    """Return time and cost of one schedule.

    Parameters
    ----------
    workload
        Calls and pools.
    pools
        Pool -> its workers.
    wakes
        Times at which workers may connect.
    ranks
        Call -> rank; calls with larger ranks start first. None for the order of readiness.
    """
    calls, dependents = workload.calls, dependents_of(workload.calls)
    waits = [len(set(call.after)) for call in calls]
    # Events (time, 0 for an end or 1 for an arrival, call): ends come first at the same time.
    events: list[tuple[float, int, int]] = [
        (call.arrival_s, 1, place) for place, call in enumerate(calls) if not call.after
    ]
    # Events without a call: workers have connected.
    events += [(wake, 1, -1) for wake in wakes]
    heapq.heapify(events)
    ends = [0.0] * len(calls)
    order = 0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, what, place = heapq.heappop(events)
            ready = [] if place < 0 else [place]
            if what == 0:
                ends[place] = now
                pools[calls[place].kind.component].leave(place, now)
                ready = []
                for other in dependents[place]:
                    waits[other] -= 1
                    if not waits[other]:
                        ready.append(other)
            for other in ready:
                if calls[other].arrival_s > now:
                    heapq.heappush(events, (calls[other].arrival_s, 1, other))
                    continue
                order += 1
                key = float(order) if ranks is None else -ranks[other]
                heapq.heappush(pools[calls[other].kind.component].queue, (key, order, other))
        for pool in pools.values():
            for place in pool.start(now):
                heapq.heappush(events, (now + calls[place].duration_s, 0, place))
    makespan = max(ends, default=0.0)
    sojourn = fmean(end - call.arrival_s for end, call in zip(ends, calls, strict=True))
    cost = sum(pool.cost() for pool in pools.values())
    return Reference(sojourn if workload.stream else makespan, cost)


class Line:
    """Workers of one pool, up to a limit; a worker is always connected when it is needed."""

    def __init__(self, terms: Terms, cap: int, startup: Startup) -> None:
        self.terms, self.cap = terms, cap
        self.delay_s = startup.delay_s
        self.boot_s = min(startup.billed_s, startup.delay_s)
        self.least_s = startup.least_s
        self.queue: list[tuple[float, int, int]] = []
        #: Workers with a free slot (room for one call), the most recently busy one comes last.
        self.free: list[ReferenceWorker] = []
        self.on: dict[int, ReferenceWorker] = {}
        self.workers = 0
        self.paid_s = 0.0
        self.begun: dict[ReferenceWorker, float] = {}

    def start(self, now: float) -> list[int]:
        """Start as many queued calls as possible and return their indices in the workload."""
        started: list[int] = []
        if now < self.delay_s:
            return started
        while self.queue and (self.free or self.workers < self.cap):
            if not self.free:
                self.free.append(ReferenceWorker(now, self.terms.slots))
                self.workers += 1
                self.paid_s += self.boot_s
            worker = self.free[-1]
            if worker.slots == self.terms.slots:
                self.paid_s += min(now - worker.free_s, self.boot_s)
                self.begun[worker] = now
            worker.slots -= 1
            if not worker.slots:
                self.free.pop()
            _, _, place = heapq.heappop(self.queue)
            self.on[place] = worker
            started.append(place)
        return started

    def leave(self, place: int, now: float) -> None:
        """Release the slot of a call that has ended."""
        worker = self.on.pop(place)
        if not worker.slots:
            self.free.append(worker)
        worker.slots += 1
        if worker.slots == self.terms.slots:
            worker.free_s = now
            self.paid_s += now - self.begun.pop(worker)

    def cost(self) -> float:
        """Return the cost of all workers."""
        return self.terms.price * max(self.paid_s, self.workers * self.least_s)
