"""Simulation of pools whose workers come from several managers. No I/O.

The policy of a pool decides how many workers it has, as in :mod:`scalable.simulation.simulator`. An
allocation policy divides them among the managers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalable.scaling.outlook import Outlook
from scalable.scaling.places import OVERDUE, billed_s
from scalable.scaling.pool_load import likeliest_load
from scalable.scaling.pool_policy import PoolPolicy, PoolView
from scalable.scaling.task_model import TaskModel
from scalable.scaling.tiers import AllocationPolicy, Tier, UnitPrice, WaitingWork
from scalable.simulation.pool import SimulatedPool, SimulatedWorker
from scalable.simulation.result import SimulationResult, Startup
from scalable.simulation.simulator import Run
from scalable.simulation.workloads import Workload
from scalable.spec import Starting
from scalable.spec.ordering import CRITICAL_PATH, Order

_HOUR_S = 3600.0


@dataclass(frozen=True)
class SimulatedManager:
    """Terms of one manager.

    Attributes
    ----------
    name
        Id of the manager.
    startup
        Start-up times of its workers, and their billing minimum.
    price
        Price of a worker-second, as a multiple of the pool's price.
    maximum
        Maximum number of workers in each pool.
    delivers
        Number of workers in each pool that it delivers at most; further requests wait until one of
        them ends. None for all. 0 stands for a manager that never delivers.
    closed
        Periods (begin, end) in seconds in which no worker connects: those that would connect then
        connect at the end of the period.
    priority
        Managers with lower numbers get workers first, under a policy that uses priorities.
    granularity_s
        Length in seconds to which billed time is rounded up.
    """

    name: str
    startup: Startup = field(default_factory=Startup)
    price: float = 1.0
    maximum: int = 64
    delivers: int | None = None
    closed: tuple[tuple[float, float], ...] = ()
    priority: int = 0
    granularity_s: float = 0.0

    def opens_at(self, time_s: float) -> float:
        """Return the earliest time, from ``time_s`` on, at which workers connect."""
        for begin, end in sorted(self.closed):
            if begin <= time_s < end:
                time_s = end
        return time_s

    def unit_price(self, pool_price: float) -> UnitPrice:
        """Return the price of one worker in a pool with this price of a worker-second."""
        hourly = self.price * pool_price * _HOUR_S
        return UnitPrice(hourly, self.startup.least_s, self.granularity_s)


def simulate_managers(  # noqa: PLR0913 - one call with the options of one simulation
    workload: Workload,
    policy: Callable[[str], PoolPolicy],
    managers: Sequence[SimulatedManager],
    allocation: AllocationPolicy,
    model: TaskModel | None = None,
    *,
    every_s: float = 5.0,
    seed: int = 0,
    looks_ahead: bool = True,
    order: Order = CRITICAL_PATH,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate a workload on pools whose workers come from several managers.

    Busy workers that are to leave finish their calls first. They are billed until then.

    Parameters
    ----------
    workload, policy, model, every_s, seed, looks_ahead, order, progress
        As in :func:`scalable.simulation.simulator.simulate`.
    managers
        The managers, at least one. Policies of pools expect the start-up times of the first.
    allocation
        Policy that divides the workers among the managers; it keeps state, so each simulation
        needs its own.

    Raises
    ------
    ValueError
        If there is no manager, or the calls have not ended after a very long simulated time.
    """
    if not managers:
        raise ValueError(f"{workload.name}: a simulation needs at least one manager")
    run = _SharedRun(workload, policy, managers, allocation, model or TaskModel(), seed, order)
    outcome = run.through(every_s, looks_ahead=looks_ahead, progress=progress)
    return replace(outcome, cost_by_manager=run.costs)


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
        order: Order = CRITICAL_PATH,
    ) -> None:
        able = {
            name: replace(terms, maximum=min(terms.maximum, sum(m.maximum for m in managers)))
            for name, terms in workload.pools.items()
        }
        super().__init__(
            replace(workload, pools=able), policy, managers[0].startup, model, seed, order
        )
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

    # Division -------------------------------------------------------------------------------------

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
                starting=_assumed(manager.startup),
            )
            for manager in self.managers.values()
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
            startup_s = _assumed(self.managers[self.homes[worker]].startup).startup_s
            waits_s = self.now - worker.asked_s
            # A worker that is overdue, such as a trial, is not expected at once.
            left_s = startup_s - waits_s if waits_s <= startup_s else OVERDUE * waits_s
            soonest = min(soonest, left_s)
        return soonest

    # Workers --------------------------------------------------------------------------------------

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
        startup = manager.startup
        paid = self.now - (worker.arrives_s - min(startup.billed_s, startup.delay_s))
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


def _assumed(startup: Startup) -> Starting:
    expected = startup.delay_s if startup.expected_s is None else startup.expected_s
    return Starting(expected, startup.billed_s, startup.least_s)
