"""What simulations are compared with: a schedule made with the truth, and lower bounds. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from scalable.simulation.result import Startup
from scalable.simulation.workloads import Terms, Workload, dependents_of, topological

#: Caps of the pools that are tried, from one worker to the maximum.
CAP_LEVELS = 12


class Reference(NamedTuple):
    """Time in seconds, and cost in price times worker-seconds."""

    time_s: float
    cost: float

    @property
    def product(self) -> float:
        """Time times cost: what the best balance makes small."""
        return self.time_s * self.cost


@dataclass(eq=False)
class _Worker:
    free_s: float
    slots: int


def clairvoyant(workload: Workload, startup: Startup, *, ranked: bool = True) -> Reference:
    """The best of some schedules that are made with true running times and arrivals.

    A list schedule for each of twelve caps on the pools' workers, from one to the maximum in
    equal ratios. Of a graph the call with the longest way to its end goes first; calls of a stream
    go in the order of their arrival. Workers are asked for early enough to be there when they are
    needed, but not before the simulation begins: nothing runs before ``startup.delay_s``. Through a
    gap a worker is kept or, where that costs less, another one is asked for in time: a gap costs no
    more than what is billed of a start. Whoever knew all this at the beginning could do so, as
    asking ahead costs nothing, with workers that take just ``delay_s``. It is no proven optimum: a
    policy may do better.

    Parameters
    ----------
    workload
        The calls and pools.
    startup
        How workers start.
    ranked
        Whether calls of a graph go by the longest way to their end; otherwise in the order in which
        they become ready, as workers of the simulator take them.
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
    ranks = _ranks(workload) if ranked and not workload.stream else None
    schedules = [_scheduled(workload, startup, caps, ranks) for caps in levels]
    return min(schedules, key=lambda reference: reference.product)


def lower_bounds(workload: Workload, startup: Startup) -> Reference:
    """Least time and least cost, each by itself; no schedule need attain both.

    Time is that of the longest way through the graph, or of what the pools' maxima allow; cost that
    of the work, and of one start for each pool that has any.
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
    longest = max(_ranks(workload), default=0.0)
    area = (s / (pools[name].maximum * pools[name].slots) for name, s in work.items())
    return Reference(startup.delay_s + max(longest, *area), cost)


def _ranks(workload: Workload) -> list[float]:
    """For each call the seconds of the longest way from its start to the end of all."""
    dependents = dependents_of(workload.calls)
    ranks = [0.0] * len(workload.calls)
    for place in reversed(topological(workload.calls)):
        behind = max((ranks[other] for other in dependents[place]), default=0.0)
        ranks[place] = workload.calls[place].duration_s + behind
    return ranks


def _scheduled(
    workload: Workload, startup: Startup, caps: dict[str, int], ranks: list[float] | None
) -> Reference:
    calls, dependents = workload.calls, dependents_of(workload.calls)
    waits = [len(set(call.after)) for call in calls]
    pools = {name: _Line(terms, caps[name], startup) for name, terms in workload.pools.items()}
    # Ends come before arrivals of the same moment: (time, 0 end or 1 arrival, place, worker).
    events: list[tuple[float, int, int]] = [
        (call.arrival_s, 1, place) for place, call in enumerate(calls) if not call.after
    ]
    # Nobody is there before: a moment without a call.
    events.append((startup.delay_s, 1, -1))
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
        for pool in pools.values() if now >= startup.delay_s else ():
            for place in pool.start(now):
                heapq.heappush(events, (now + calls[place].duration_s, 0, place))
    makespan = max(ends, default=0.0)
    sojourn = fmean(end - call.arrival_s for end, call in zip(ends, calls, strict=True))
    cost = sum(pool.cost() for pool in pools.values())
    return Reference(sojourn if workload.stream else makespan, cost)


class _Line:
    """Workers of one pool, at most so many, there whenever one is needed."""

    def __init__(self, terms: Terms, cap: int, startup: Startup) -> None:
        self.terms, self.cap = terms, cap
        self.boot_s = min(startup.billed_s, startup.delay_s)
        self.least_s = startup.least_s
        self.queue: list[tuple[float, int, int]] = []
        #: Workers with a free slot; the one that was busy last is at the end.
        self.free: list[_Worker] = []
        self.on: dict[int, _Worker] = {}
        self.workers = 0
        self.paid_s = 0.0
        self.begun: dict[_Worker, float] = {}

    def start(self, now: float) -> list[int]:
        """Places of calls that start now."""
        started = []
        while self.queue and (self.free or self.workers < self.cap):
            if not self.free:
                self.free.append(_Worker(now, self.terms.slots))
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
        """A call has ended."""
        worker = self.on.pop(place)
        if not worker.slots:
            self.free.append(worker)
        worker.slots += 1
        if worker.slots == self.terms.slots:
            worker.free_s = now
            self.paid_s += now - self.begun.pop(worker)

    def cost(self) -> float:
        return self.terms.price * max(self.paid_s, self.workers * self.least_s)
