"""Schedules that know the future, to compare simulations with."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from simulation.workloads import Startup, Terms, Workload, dependents_of

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


def clairvoyant(workload: Workload, startup: Startup) -> Reference:
    """Return the best of several schedules that use the true running times and arrivals."""
    levels = []
    for level in range(CAP_LEVELS):
        share = level / (CAP_LEVELS - 1)
        caps = {
            name: max(1, terms.minimum, round(terms.maximum**share))
            for name, terms in workload.pools.items()
        }
        if caps not in levels:
            levels.append(caps)
    schedules = [
        scheduled(
            workload,
            {name: Line(terms, caps[name], startup) for name, terms in workload.pools.items()},
            [startup.delay_s],
        )
        for caps in levels
    ]
    return min(schedules, key=lambda reference: reference.product)


def scheduled(workload: Workload, pools: Mapping[str, Line], wakes: Iterable[float]) -> Reference:
    """Return time and cost of one schedule. ``wakes``: times at which workers may connect."""
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
                heapq.heappush(pools[calls[other].kind.component].queue, (order, other))
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
        self.terms, self.cap, self.startup = terms, cap, startup
        self.queue: list[tuple[int, int]] = []
        #: Workers with a free slot (room for one call), the most recently busy one comes last.
        self.free: list[ReferenceWorker] = []
        self.on: dict[int, ReferenceWorker] = {}
        self.workers = 0
        self.paid_s = 0.0
        self.begun: dict[ReferenceWorker, float] = {}

    def start(self, now: float) -> list[int]:
        """Start as many queued calls as possible and return their indices in the workload."""
        started: list[int] = []
        while self.queue and (worker := self.next_worker(now)) is not None:
            if worker.slots == self.terms.slots:
                self.pay(worker, min(now - worker.free_s, self.boot_s(worker)))
                self.begun[worker] = now
            worker.slots -= 1
            if not worker.slots:
                self.free.remove(worker)
            _, place = heapq.heappop(self.queue)
            self.on[place] = worker
            started.append(place)
        return started

    def next_worker(self, now: float) -> ReferenceWorker | None:
        """Return the worker that was busy last, or a new one; None without one."""
        if now < self.startup.delay_s:
            return None
        if not self.free and self.workers < self.cap:
            worker = ReferenceWorker(now, self.terms.slots)
            self.free.append(worker)
            self.workers += 1
            self.pay(worker, self.startup.boot_s)
        return self.free[-1] if self.free else None

    def boot_s(self, worker: ReferenceWorker) -> float:  # noqa: ARG002
        """Return the billed part of the start of a worker in the place of this one."""
        return self.startup.boot_s

    def pay(self, worker: ReferenceWorker, seconds: float) -> None:  # noqa: ARG002
        """Add billed seconds of a worker."""
        self.paid_s += seconds

    def leave(self, place: int, now: float) -> None:
        worker = self.on.pop(place)
        if not worker.slots:
            self.free.append(worker)
        worker.slots += 1
        if worker.slots == self.terms.slots:
            worker.free_s = now
            self.pay(worker, now - self.begun.pop(worker))

    def cost(self) -> float:
        return self.terms.price * max(self.paid_s, self.workers * self.startup.least_s)
