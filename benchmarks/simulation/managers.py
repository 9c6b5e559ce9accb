"""Simulation of pools whose workers come from several managers, and schedules to compare it with.

The policy of a pool decides how many workers it has, as in ``simulator.py``. An allocation policy
divides them among the managers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from scalable.scaling.outlook import Outlook
from scalable.scaling.places import OVERDUE, billed_s
from scalable.scaling.pool_load import likeliest_load
from scalable.scaling.pool_policy import PoolPolicy, PoolView
from scalable.scaling.task_model import TaskModel
from scalable.scaling.tiers import AllocationPolicy, Tier, UnitPrice, WaitingWork
from scalable.spec import Starting
from simulation.reference import Line, Reference, ReferenceWorker, scheduled
from simulation.simulator import Run, SimulatedPool, SimulatedWorker, SimulationResult
from simulation.workloads import Startup, Terms, Workload

_HOUR_S = 3600.0
#: Maximum number of tried combinations of the managers' limits.
COMBINATIONS = 144


@dataclass(frozen=True)
class SimulatedManager:
    """Terms of one manager."""

    name: str
    startup: Startup = field(default_factory=Startup)
    #: Price of a worker-second, as a multiple of the pool's price.
    price: float = 1.0
    #: Maximum number of workers in each pool.
    maximum: int = 64
    #: Number of workers in each pool that it delivers at most; further requests wait until one of
    #: them ends. None for all, 0 for a manager that never delivers.
    delivers: int | None = None
    #: Periods (begin, end) in which no worker connects: those that would, connect at the end.
    closed: tuple[tuple[float, float], ...] = ()
    #: Managers with lower numbers get workers first, under a policy that uses priorities.
    priority: int = 0

    def opens_at(self, time_s: float) -> float:
        """Return the earliest time, from ``time_s`` on, at which workers connect."""
        for begin, end in sorted(self.closed):
            if begin <= time_s < end:
                time_s = end
        return time_s

    def unit_price(self, pool_price: float) -> UnitPrice:
        """Return the price of one worker in a pool with this price of a worker-second."""
        hourly = self.price * pool_price * _HOUR_S
        return UnitPrice(hourly, self.startup.least_s, self.startup.granularity_s)


def simulate_managers(
    workload: Workload,
    policy: Callable[[str], PoolPolicy],
    managers: Sequence[SimulatedManager],
    allocation: AllocationPolicy,
    model: TaskModel | None = None,
    *,
    every_s: float = 5.0,
    seed: int = 0,
) -> SimulationResult:
    """Simulate a workload on pools whose workers come from several managers.

    ``allocation`` divides the workers among the managers; it keeps state, so each simulation needs
    its own. Policies of pools expect the start-up times of the first manager. Busy workers that are
    to leave finish their calls first, and are billed until then.
    """
    run = _SharedRun(workload, policy, managers, allocation, model or TaskModel(), seed)
    return replace(run.through(every_s, looks_ahead=True), cost_by_manager=run.costs)


class _SharedRun(Run):
    """State of one simulation with several managers."""

    def __init__(
        self,
        workload: Workload,
        policy: Callable[[str], PoolPolicy],
        managers: Sequence[SimulatedManager],
        allocation: AllocationPolicy,
        model: TaskModel,
        seed: int,
    ) -> None:
        able = {
            name: replace(terms, maximum=min(terms.maximum, sum(m.maximum for m in managers)))
            for name, terms in workload.pools.items()
        }
        super().__init__(replace(workload, pools=able), policy, managers[0].startup, model, seed)
        self.managers = {manager.name: manager for manager in managers}
        self.allocation = allocation
        self.costs = dict.fromkeys(self.managers, 0.0)
        #: Worker -> name of its manager.
        self.homes: dict[SimulatedWorker, str] = {}
        #: Workers that their manager does not deliver for the time being, in the order of requests.
        self.stuck: list[tuple[SimulatedPool, SimulatedWorker]] = []
        #: Busy workers that leave when their calls have ended.
        self.leaving: set[SimulatedWorker] = set()
        self.on: dict[int, SimulatedWorker] = {}
        self.views: dict[str, PoolView] = {}
        self.targets = dict.fromkeys(self.pools, 0)

    def view(self, pool: SimulatedPool, ahead: Sequence[Outlook]) -> PoolView:
        view = super().view(pool, ahead)
        # Trials come on top of the wanted workers. They have waited longest.
        missing = max(0, self.targets[pool.name] - pool.connected)
        waits = sorted(view.arriving, reverse=True)
        waits = waits[max(0, len(waits) - missing) :]
        startup_s = max([pool.startup_s(float("-inf")), *waits[:1]])
        self.views[pool.name] = replace(view, arriving=waits, startup_s=startup_s)
        return self.views[pool.name]

    def resize(self, wanted: Mapping[str, int]) -> None:
        self.targets = dict(wanted)
        work: dict[str, WaitingWork] = {}
        if self.allocation.weighs_work:
            for name, view in self.views.items():
                load = likeliest_load(view, self.model)
                work[name] = WaitingWork(
                    load.portions, load.rest_s, least=self.pools[name].terms.minimum
                )
        shares = self.allocation.allot(wanted, self.tiers(), self.now, work)
        for manager, counts in shares.items():
            for name, count in counts.items():
                self.set_share(self.pools[name], manager, count)

    def tiers(self) -> list[Tier]:
        return [
            Tier(
                manager.name,
                manager.priority,
                dict.fromkeys(self.pools, manager.maximum),
                frozenset(self.pools),
                {n: len(self.connected(p, manager.name)) for n, p in self.pools.items()},
                prices={n: manager.unit_price(p.terms.price) for n, p in self.pools.items()},
                starting=Starting(s.told_s, s.billed_s, s.least_s),
            )
            for manager in self.managers.values()
            for s in [manager.startup]
        ]

    def connected(self, pool: SimulatedPool, manager: str) -> list[SimulatedWorker]:
        return [
            worker
            for worker in pool.everyone
            if worker.connected and worker not in self.leaving and self.homes[worker] == manager
        ]

    def set_share(self, pool: SimulatedPool, manager: str, count: int) -> None:
        """Request or remove workers of one manager."""
        waiting = [worker for worker in pool.arriving if self.homes[worker] == manager]
        connected = self.connected(pool, manager)
        more = count - len(waiting) - len(connected)
        for _ in range(more):
            self.ask_of(pool, self.managers[manager])
        for _ in range(-more):
            if waiting:
                worker = waiting.pop()
                pool.arriving.remove(worker)
                self.stuck = [entry for entry in self.stuck if entry[1] is not worker]
            else:
                worker = min(connected, key=lambda w: (w.calls, w.asked_s))
                connected.remove(worker)
                self.release(pool, worker)
                if worker.calls:
                    self.leaving.add(worker)
                    continue
            self.dismiss(pool, worker)

    def release(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        """Give a connected worker no more calls; its running calls are no load for the others."""
        if worker in pool.free:
            pool.free.remove(worker)
        pool.connected -= 1
        pool.timeline.append((self.now, pool.connected))
        if worker.calls:
            pool.busy -= 1
            for place in [place for place, on in self.on.items() if on is worker]:
                super().stop_counting(pool, place)

    def first_worker_s(self, pool: SimulatedPool) -> float:
        """Return the expected seconds until the first worker of a pool connects."""
        soonest = pool.startup_s(float("-inf"))
        for worker in pool.arriving:
            startup_s = self.managers[self.homes[worker]].startup.told_s
            waits_s = self.now - worker.asked_s
            # A worker that is overdue, such as a trial, is not expected at once.
            left_s = startup_s - waits_s if waits_s <= startup_s else OVERDUE * waits_s
            soonest = min(soonest, left_s)
        return soonest

    def ask_of(self, pool: SimulatedPool, manager: SimulatedManager) -> None:
        worker = SimulatedWorker(self.now, float("inf"))
        pool.arriving.append(worker)
        pool.everyone[worker] = None
        self.homes[worker] = manager.name
        there = sum(
            self.homes[w] == manager.name and w.arrives_s < float("inf") for w in pool.everyone
        )
        if manager.delivers is not None and there >= manager.delivers:
            self.stuck.append((pool, worker))
        else:
            self.start(pool, worker)

    def start(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        manager = self.managers[self.homes[worker]]
        startup = manager.startup
        delay = startup.delay_s * self.random.uniform(*startup.spread)
        worker.arrives_s = manager.opens_at(self.now + delay)
        self.at(worker.arrives_s, self.arrive, pool, worker)

    def dispatched(self, place: int, worker: SimulatedWorker) -> None:
        self.on[place] = worker

    def stop_counting(self, pool: SimulatedPool, place: int) -> None:
        if self.on.pop(place) not in self.leaving:
            super().stop_counting(pool, place)

    def free_slot(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        if worker not in self.leaving:
            super().free_slot(pool, worker)
            return
        worker.calls -= 1
        if not worker.calls:
            self.leaving.discard(worker)
            self.dismiss(pool, worker)

    def dismiss(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        worker.gone = True
        pool.everyone.pop(worker, None)
        manager = self.managers[self.homes[worker]]
        paid = self.now - (worker.arrives_s - manager.startup.boot_s)
        if paid > 0 or worker.connected:
            price = manager.unit_price(pool.terms.price)
            cost = price.per_hour / _HOUR_S * billed_s(price, paid)
            pool.cost += cost
            self.costs[manager.name] += cost
        mine = [entry for entry in self.stuck if entry[0] is pool]
        freed = next((e for e in mine if self.homes[e[1]] == manager.name), None)
        if freed is not None and worker.arrives_s < float("inf"):
            self.stuck.remove(freed)
            self.start(*freed)


def clairvoyant_managers(
    workload: Workload, managers: Sequence[SimulatedManager], deadline_s: float | None = None
) -> Reference:
    """Return the best of several schedules that use the true running times and start-up times.

    The schedules differ in the limits of the managers, from no worker to the maximum that the
    manager delivers. A call runs on the cheapest worker that is free, or on a new worker of the
    cheapest manager that delivers at that moment. With a deadline the result is the cheapest
    schedule in time, or the quickest if there is none; without one, the least product of time and
    cost. It is not a proven optimum.
    """
    able = [m for m in managers if m.maximum and m.delivers != 0]
    levels = max(2, int(COMBINATIONS ** (1 / len(able))))
    wakes = {end for m in able for _, end in m.closed} | {m.startup.delay_s for m in able}
    wakes |= {m.opens_at(m.startup.delay_s) for m in able}
    found = []
    for caps in sorted(set(product(*(_caps(m, levels) for m in able)))):
        if any(caps):
            limits = dict(zip((m.name for m in able), caps, strict=True))
            lines = {n: _SharedLine(terms, able, limits) for n, terms in workload.pools.items()}
            found.append(scheduled(workload, lines, sorted(wakes)))
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
                self.free.append(worker)
                self.pay(worker, startup.boot_s)
                return worker
        return None

    def boot_s(self, worker: ReferenceWorker) -> float:
        """Return the billed part of the start of a worker of the same manager."""
        return self.homes[worker].startup.boot_s

    def pay(self, worker: ReferenceWorker, seconds: float) -> None:
        """Add billed seconds of a worker."""
        self.paid[self.homes[worker].name] += seconds

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
