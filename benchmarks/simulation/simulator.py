"""Simulation of a workload on pools whose worker counts a policy decides.

Each pool runs the call first that became ready first, on the free worker that was busy last.
Policies get the same information as in a live cluster. Equal seeds give equal results. In graphs
with more than 500 unfinished calls, the forecast of the calls that will become ready is computed
again only after a share of these calls, a twentieth or more, have changed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol, runtime_checkable

from scalable.scaling.outlook import Outlook, likeliest, outlooks_on
from scalable.scaling.pool_policy import PoolPolicy, PoolView
from scalable.scaling.readiness import LARGEST_LOOK, Coming, GraphView, Slots, coming, grouped
from scalable.scaling.task_model import Kind, Sample, TaskModel
from simulation.workloads import Startup, Terms, Workload

#: Simulated seconds after which a simulation fails.
LONGEST_S = 1e8
#: Number of latest worker starts from which the expected start-up time is computed, as in a live
#: cluster.
KEPT_STARTS = 20
#: The coming calls are computed again without any event after this share of the start-up delay, and
#: after this share of the time since the last event.
_STALE, _STALE_SHARE = 0.05, 0.1
#: Maximum number of known calls with which the coming calls are computed for every decision. With
#: more calls, a share of them has to change first, or as many decisions have to pass. The share
#: grows with the number of calls by so much for each 10,000. This bounds the time of a simulation.
_SMALL, _CHANGED, _CHANGED_MORE = 500, 0.05, 0.1


def look_every_s(startup_s: float) -> float:
    """Return the seconds between two decisions: a tenth of the start-up time, within 1 s to 5 s."""
    return min(5.0, max(1.0, startup_s / 10))


class Change(NamedTuple):
    """Change of a pool's worker count: time, counts before and after, and reason."""

    time_s: float
    pool: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation."""

    #: Seconds until the last call ended.
    makespan_s: float
    #: Mean seconds from a call's arrival to its end.
    sojourn_s: float
    #: The first for a graph, the second for a stream.
    time_s: float
    #: Billed worker-seconds times price, in all pools together.
    cost: float
    changes: list[Change]
    #: Number of decisions, including those without a change.
    looks: int
    #: Pool -> pairs (time, number of connected workers), one for each change of the number.
    workers: Mapping[str, list[tuple[float, int]]]


@runtime_checkable
class Observer(Protocol):
    """Policy that learns from ended calls itself instead of using the task model."""

    def ended(self, kind: Kind, duration_s: float) -> None:
        """Record a call that ended."""


@dataclass(eq=False)
class SimulatedWorker:
    """One worker: when it was requested, when it connects, and how many calls it runs."""

    asked_s: float
    arrives_s: float
    connected: bool = False
    gone: bool = False
    calls: int = 0


@dataclass
class SimulatedPool:
    """One pool: its policy, its calls, and its workers."""

    name: str
    terms: Terms
    policy: PoolPolicy
    expected_s: float
    queue: deque[int] = field(default_factory=deque)
    queued: dict[Kind, int] = field(default_factory=dict)
    running: dict[Kind, dict[int, float]] = field(default_factory=dict)
    arriving: list[SimulatedWorker] = field(default_factory=list)
    #: Connected workers with a free slot (room for one call); the last worker is used first.
    free: list[SimulatedWorker] = field(default_factory=list)
    connected: int = 0
    busy: int = 0
    submitted: int = 0
    starts: list[float] = field(default_factory=list)
    cost: float = 0.0
    timeline: list[tuple[float, int]] = field(default_factory=list)
    #: Workers that were requested and have not ended, in the order of their requests.
    everyone: dict[SimulatedWorker, None] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """Number of connected and starting workers."""
        return self.connected + len(self.arriving)

    def startup_s(self, now: float) -> float:
        """Return the expected start-up time in seconds, learned as in a live cluster."""
        learned = median(self.starts[-KEPT_STARTS:]) if self.starts else self.expected_s
        return max(learned, now - self.arriving[0].asked_s if self.arriving else 0.0)


class Looked(NamedTuple):
    """Outlooks with the coming calls of all pools, the pools, and the number of known calls."""

    outlooks: list[tuple[Outlook, Coming]]
    pools: list[str]
    calls: int


class Forecasts:
    """The last forecast of the coming calls, and what has happened since."""

    def __init__(self, delay_s: float) -> None:
        #: Kind -> number of calls that have become ready since the last forecast.
        self.readied: Counter[Kind] = Counter()
        self._delay_s = delay_s
        self._looked = Looked([], [], 0)
        #: Time of the last forecast, and of the last one before which anything had happened.
        self._looked_s = self._stirred_s = 0.0
        #: Since the last forecast: whether anything happened, number of events and decisions.
        self._stirred, self._news = True, 0

    def note(self) -> None:
        """Note that a call has become ready or has ended, or that a worker has connected."""
        self._stirred = True
        self._news += 1

    def at(self, now: float, look: Callable[[], Looked]) -> dict[str, list[Outlook]]:
        """Return the outlooks of each pool; until a forecast is due, the last one is shifted."""
        since = now - self._looked_s
        self._news += 1
        calls = self._looked.calls
        due = calls <= _SMALL or self._news >= calls * (_CHANGED + _CHANGED_MORE * calls / 10_000)
        stale = max(_STALE * self._delay_s, _STALE_SHARE * (now - self._stirred_s))
        if due and (self._stirred or since > stale):
            if self._stirred:
                self._stirred_s = now
            self._looked, self._looked_s, since = look(), now, 0.0
            self._stirred, self._news = False, 0
            self.readied.clear()
        return {
            name: [
                outlook._replace(coming=self._shifted(forecast.get(name, ()), since))
                for outlook, forecast in self._looked.outlooks
            ]
            for name in self._looked.pools
        }

    def _shifted(
        self, entries: Sequence[tuple[float, Kind, int]], since_s: float
    ) -> list[tuple[float, Kind, int]]:
        """Return a forecast of coming calls without those that have become ready since."""
        if not since_s:
            return list(entries)
        gone = Counter(self.readied)
        moved = []
        for ready_s, kind, calls in entries:
            ready = min(calls, gone[kind])
            gone[kind] -= ready
            if ready < calls:
                moved.append((max(0.0, ready_s - since_s), kind, calls - ready))
        return moved


def simulate(
    workload: Workload,
    policy: Callable[[str], PoolPolicy],
    startup: Startup | None = None,
    model: TaskModel | None = None,
    *,
    every_s: float = 5.0,
    seed: int = 0,
    looks_ahead: bool = True,
) -> SimulationResult:
    """Simulate a workload on pools whose worker counts a policy decides."""
    run = Run(workload, policy, startup or Startup(), model or TaskModel(), seed)
    return run.through(every_s, looks_ahead=looks_ahead)


class Run:
    """State of one simulation."""

    def __init__(
        self,
        workload: Workload,
        policy: Callable[[str], PoolPolicy],
        startup: Startup,
        model: TaskModel,
        seed: int,
    ) -> None:
        self.workload, self.calls = workload, workload.calls
        self.startup, self.model = startup, model
        self.random = random.Random(seed)
        self.pools = {
            name: SimulatedPool(name, terms, policy(name), startup.told_s)
            for name, terms in workload.pools.items()
        }
        #: Pool -> its policy, if the policy learns from ended calls.
        self.observers = {
            name: pool.policy
            for name, pool in self.pools.items()
            if isinstance(pool.policy, Observer)
        }
        waiting = {
            place: (call.kind, call.after) for place, call in enumerate(self.calls) if call.after
        }
        groups, self.dependents = grouped(waiting, range(len(self.calls)))
        # Policies learn of a blocked call when it arrives.
        self.blocked: dict[int, tuple[Kind, tuple[int, ...]]] = {}
        #: Call that waits for others -> its group, until these have ended.
        self.groups = {place: group for group in groups for place in group.calls}
        self.ends: list[float | None] = [None] * len(self.calls)
        self.left = len(self.calls)
        self.now = 0.0
        #: Events: time, number, and what happens with which arguments.
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.number = count()
        self.changes: list[Change] = []
        self.looks = 0
        self.forecasts = Forecasts(self.startup.delay_s)

    def through(self, every_s: float, *, looks_ahead: bool) -> SimulationResult:
        arrivals = [(call.arrival_s, place) for place, call in enumerate(self.calls)]
        arrivals.sort(key=itemgetter(0))
        # Arrivals come before other events of the same moment. A sorted list is a heap.
        self.events = [
            (time_s, next(self.number), self.come, (place,)) for time_s, place in arrivals
        ]
        next_look = 0.0
        while self.left:
            # Events at the moment of a decision come before the decision.
            if self.events and self.events[0][0] <= next_look:
                self.now, _, happen, things = heapq.heappop(self.events)
                happen(*things)
                continue
            self.now = next_look
            if self.now > LONGEST_S:
                raise ValueError(
                    f"{self.workload.name}: {self.left} calls have not ended after {LONGEST_S:g} s"
                )
            self.look(looks_ahead=looks_ahead)
            next_look += every_s
        return self.outcome()

    def at(self, time_s: float, happen: Callable[..., None], *things: Any) -> None:
        """Let something happen at a time: a function is called with these arguments."""
        heapq.heappush(self.events, (time_s, next(self.number), happen, things))

    def come(self, place: int) -> None:
        pool = self.pools[self.calls[place].kind.component]
        pool.submitted += 1
        if place not in self.groups:
            self.enqueue(place)
            self.dispatch(pool)
        elif not self.workload.stream:
            self.blocked[place] = (self.calls[place].kind, self.calls[place].after)

    def enqueue(self, place: int) -> None:
        kind = self.calls[place].kind
        pool = self.pools[kind.component]
        self.blocked.pop(place, None)
        pool.queue.append(place)
        pool.queued[kind] = pool.queued.get(kind, 0) + 1
        self.forecasts.readied[kind] += 1
        self.forecasts.note()

    def dispatch(self, pool: SimulatedPool) -> None:
        """Start as many queued calls as there are free slots."""
        while pool.queue and pool.free:
            worker = pool.free[-1]
            place = pool.queue.popleft()
            call = self.calls[place]
            pool.queued[call.kind] -= 1
            if not pool.queued[call.kind]:
                del pool.queued[call.kind]
            pool.running.setdefault(call.kind, {})[place] = self.now
            pool.busy += not worker.calls
            worker.calls += 1
            if worker.calls == pool.terms.slots:
                pool.free.pop()
            self.at(self.now + call.duration_s, self.end, place, worker)

    def end(self, place: int, worker: SimulatedWorker) -> None:
        call = self.calls[place]
        pool = self.pools[call.kind.component]
        self.ends[place] = self.now
        self.left -= 1
        self.forecasts.note()
        self.stop_counting(pool, place)
        self.model.observe(Sample(call.kind, call.duration_s, call.memory))
        if pool.name in self.observers:
            self.observers[pool.name].ended(call.kind, call.duration_s)
        self.free_slot(pool, worker)
        touched = {pool.name: pool}
        for other in self.released(place):
            if self.calls[other].arrival_s <= self.now:
                self.enqueue(other)
                home = self.pools[self.calls[other].kind.component]
                touched[home.name] = home
        for each in touched.values():
            self.dispatch(each)

    def released(self, place: int) -> list[int]:
        """Return the calls that waited for an ended call and for no other, as submitted."""
        free: list[int] = []
        for group in self.dependents.pop(place, ()):
            group.waits -= 1
            if not group.waits:
                free += group.calls
        for other in free:
            del self.groups[other]
        return sorted(free)

    def stop_counting(self, pool: SimulatedPool, place: int) -> None:
        """Take a call out of the running calls of its pool."""
        kind = self.calls[place].kind
        running = pool.running[kind]
        del running[place]
        if not running:
            del pool.running[kind]

    def free_slot(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        if worker.calls == pool.terms.slots:
            pool.free.append(worker)
        worker.calls -= 1
        pool.busy -= not worker.calls

    def arrive(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        """Connect a worker, unless it was cancelled."""
        if worker.gone:
            return
        pool.arriving.remove(worker)
        pool.starts.append(self.now - worker.asked_s)
        worker.connected = True
        pool.connected += 1
        pool.timeline.append((self.now, pool.connected))
        pool.free.append(worker)
        self.forecasts.note()
        self.dispatch(pool)

    def look(self, *, looks_ahead: bool) -> None:
        ahead = self.forecasts.at(self.now, self.look_ahead) if looks_ahead else {}
        wanted, reasons = {}, {}
        for name, pool in self.pools.items():
            self.looks += 1
            decision = pool.policy.decide(self.view(pool, ahead.get(name, ())), self.model)
            wanted[name] = min(max(decision.workers, pool.terms.minimum), pool.terms.maximum)
            reasons[name] = decision.reason
        before = {name: pool.wanted for name, pool in self.pools.items()}
        self.resize(wanted)
        for name, pool in self.pools.items():
            if pool.wanted != before[name]:
                change = Change(self.now, name, before[name], pool.wanted, reasons[name])
                self.changes.append(change)

    def resize(self, wanted: Mapping[str, int]) -> None:
        for name, workers in wanted.items():
            pool = self.pools[name]
            for _ in range(workers - pool.wanted):
                self.ask(pool)
            if workers < pool.wanted:
                self.remove(pool, pool.wanted - workers)

    def view(self, pool: SimulatedPool, ahead: Sequence[Outlook]) -> PoolView:
        now, startup_s = self.now, pool.startup_s(self.now)
        return PoolView(
            now=now,
            minimum=pool.terms.minimum,
            maximum=pool.terms.maximum,
            slots=pool.terms.slots,
            wanted=pool.wanted,
            busy=pool.busy,
            idle=pool.connected - pool.busy,
            arriving=[now - worker.asked_s for worker in pool.arriving],
            queued=dict(pool.queued),
            running={
                kind: [now - began for began in calls.values()]
                for kind, calls in pool.running.items()
            },
            coming=likeliest(ahead).coming if ahead else (),
            outlooks=ahead,
            submitted=pool.submitted,
            graph=not self.workload.stream,
            startup_s=startup_s,
            billed_startup_s=min(startup_s, self.startup.billed_s),
            billed_least_s=self.startup.least_s,
        )

    def look_ahead(self) -> Looked:
        slots = {}
        for pool in self.pools.values():
            first = 0.0 if pool.connected else self.first_worker_s(pool)
            slots[pool.name] = Slots(max(1, pool.wanted) * pool.terms.slots, first)
        running: dict[int, tuple[Kind, float]] = {}
        for pool in self.pools.values():
            for kind, calls in pool.running.items():
                running.update((place, (kind, self.now - began)) for place, began in calls.items())
        queued = {p: self.calls[p].kind for pool in self.pools.values() for p in pool.queue}
        graph = GraphView(running, queued, self.blocked, self.dependents)
        startup_s = max(pool.startup_s(self.now) for pool in self.pools.values())
        found = [
            (outlook, coming(graph, outlook.lengths, slots) if self.blocked else {})
            for outlook in outlooks_on(graph, self.model, startup_s)
        ]
        known = len(running) + len(queued) + min(len(self.blocked), LARGEST_LOOK)
        return Looked(found, list(self.pools), known)

    def first_worker_s(self, pool: SimulatedPool) -> float:
        """Return the expected seconds until the first worker of a pool connects."""
        oldest = self.now - pool.arriving[0].asked_s if pool.arriving else 0.0
        return max(0.0, pool.startup_s(self.now) - oldest)

    def ask(self, pool: SimulatedPool) -> None:
        delay = self.startup.delay_s * self.random.uniform(*self.startup.spread)
        worker = SimulatedWorker(self.now, self.now + delay)
        pool.arriving.append(worker)
        pool.everyone[worker] = None
        self.at(worker.arrives_s, self.arrive, pool, worker)

    def remove(self, pool: SimulatedPool, fewer: int) -> None:
        """Remove starting workers, the newest first, then idle workers; never a busy one."""
        for _ in range(fewer):
            if pool.arriving:
                self.dismiss(pool, pool.arriving.pop())
                continue
            idle = next((worker for worker in pool.free if not worker.calls), None)
            if idle is None:
                return
            pool.free.remove(idle)
            pool.connected -= 1
            pool.timeline.append((self.now, pool.connected))
            self.dismiss(pool, idle)

    def dismiss(self, pool: SimulatedPool, worker: SimulatedWorker) -> None:
        worker.gone = True
        pool.everyone.pop(worker, None)
        paid = self.now - (worker.arrives_s - self.startup.boot_s)
        if paid > 0 or worker.connected:
            pool.cost += pool.terms.price * self.startup.paid_s(paid)

    def outcome(self) -> SimulationResult:
        for pool in self.pools.values():
            for worker in list(pool.everyone):
                self.dismiss(pool, worker)
            pool.timeline.append((self.now, 0))
        pairs = [
            (end or 0.0, call.arrival_s) for end, call in zip(self.ends, self.calls, strict=True)
        ]
        makespan = max((end for end, _ in pairs), default=0.0)
        sojourn = fmean(end - arrival for end, arrival in pairs) if pairs else 0.0
        return SimulationResult(
            makespan_s=makespan,
            sojourn_s=sojourn,
            time_s=sojourn if self.workload.stream else makespan,
            cost=sum(pool.cost for pool in self.pools.values()),
            changes=self.changes,
            looks=self.looks,
            workers={pool.name: pool.timeline for pool in self.pools.values()},
        )
