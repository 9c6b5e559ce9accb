"""Schedules on several managers that know the future, to compare simulations with. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import product

from scalable.scaling.places import billed_s
from scalable.simulation.managers import SimulatedManager
from scalable.simulation.reference import Line, Reference, ReferenceWorker, ranks_of, scheduled
from scalable.simulation.workloads import Terms, Workload

#: Maximum number of tried combinations of the managers' limits.
COMBINATIONS = 144


def clairvoyant_managers(
    workload: Workload, managers: Sequence[SimulatedManager], deadline_s: float | None = None
) -> Reference:
    """Return the best of several schedules that use the true running times and start-up times.

    The schedules differ in the limits of the managers, from no worker to the maximum that the
    manager delivers. A call runs on the cheapest worker that is free, or on a new worker of the
    cheapest manager that delivers at that moment. Otherwise the schedules are like those of
    :func:`scalable.simulation.reference.clairvoyant`. The result is not a proven optimum.

    Parameters
    ----------
    workload
        Calls and pools.
    managers
        Terms of the managers.
    deadline_s
        Time by which the calls should have ended: the result is the cheapest schedule in time, or
        the quickest if there is none. None for the least product of time and cost.

    Raises
    ------
    ValueError
        If no manager delivers any worker.
    """
    able = [m for m in managers if m.maximum and m.delivers != 0]
    if not able:
        raise ValueError(f"{workload.name}: no manager delivers workers")
    levels = max(2, int(COMBINATIONS ** (1 / len(able))))
    ranks = None if workload.stream else ranks_of(workload)
    wakes = {end for m in able for _, end in m.closed} | {m.startup.delay_s for m in able}
    wakes |= {m.opens_at(m.startup.delay_s) for m in able}
    found = []
    for caps in sorted(set(product(*(_caps(m, levels) for m in able)))):
        if any(caps):
            limits = dict(zip((m.name for m in able), caps, strict=True))
            lines = {n: _SharedLine(terms, able, limits) for n, terms in workload.pools.items()}
            found.append(scheduled(workload, lines, sorted(wakes), ranks))
    if deadline_s is None:
        return min(found, key=lambda reference: reference.product)
    in_time = [reference for reference in found if reference.time_s <= deadline_s]
    if in_time:
        return min(in_time, key=lambda reference: reference.cost)
    return min(found, key=lambda reference: reference.time_s)


def _caps(manager: SimulatedManager, levels: int) -> list[int]:
    """Return limits from none to the maximum, in about equal ratios."""
    most = manager.maximum if manager.delivers is None else min(manager.maximum, manager.delivers)
    return (
        sorted({0, *(round(most ** (i / (levels - 2))) for i in range(levels - 1)), most})
        if (levels > 2)
        else [0, most]
    )


class _SharedLine(Line):
    """Workers of one pool from several managers, the cheapest of which are used first."""

    def __init__(
        self, terms: Terms, managers: Sequence[SimulatedManager], caps: Mapping[str, int]
    ) -> None:
        super().__init__(terms, sum(caps.values()), managers[0].startup)
        self.managers = sorted(managers, key=lambda m: (m.price, m.startup.delay_s))
        self.caps = caps
        self.homes: dict[ReferenceWorker, SimulatedManager] = {}
        #: Manager -> paid seconds, and number of workers.
        self.paid: dict[str, float] = dict.fromkeys(caps, 0.0)
        self.made: dict[str, int] = dict.fromkeys(caps, 0)

    def start(self, now: float) -> list[int]:
        """Start as many queued calls as possible and return their indices in the workload."""
        started: list[int] = []
        while self.queue:
            worker = self.next_worker(now)
            if worker is None:
                break
            manager = self.homes[worker]
            if worker.slots == self.terms.slots:
                startup = manager.startup
                boot_s = min(startup.billed_s, startup.delay_s)
                self.paid[manager.name] += min(now - worker.free_s, boot_s)
                self.begun[worker] = now
            worker.slots -= 1
            if not worker.slots:
                self.free.remove(worker)
            _, _, place = heapq.heappop(self.queue)
            self.on[place] = worker
            started.append(place)
        return started

    def next_worker(self, now: float) -> ReferenceWorker | None:
        """Return the cheapest free worker, or a new one of a cheaper manager; None without one."""
        free = {id(m): None for m in self.managers} | {id(self.homes[w]): w for w in self.free}
        for manager in self.managers:
            if (worker := free[id(manager)]) is not None:
                return worker
            startup = manager.startup
            opens = startup.delay_s <= now == manager.opens_at(now)
            if opens and self.made[manager.name] < self.caps[manager.name]:
                worker = ReferenceWorker(now, self.terms.slots)
                self.homes[worker] = manager
                self.made[manager.name] += 1
                self.paid[manager.name] += min(startup.billed_s, startup.delay_s)
                self.free.append(worker)
                return worker
        return None

    def leave(self, place: int, now: float) -> None:
        """Release the slot of a call that has ended."""
        worker = self.on[place]
        before = self.paid_s
        super().leave(place, now)
        self.paid[self.homes[worker].name] += self.paid_s - before

    def cost(self) -> float:
        """Return the cost of all workers."""
        total = 0.0
        for manager in self.managers:
            made = self.made[manager.name]
            price = manager.unit_price(self.terms.price)
            if made:
                each = billed_s(price, self.paid[manager.name] / made)
                total += price.per_hour / 3600 * made * each
        return total
