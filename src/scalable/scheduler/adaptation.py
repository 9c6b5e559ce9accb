"""Adaptive pools: the worker count of each pool follows its load, which task log events update."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import Scheduler
from distributed.scheduler import WorkerState
from tornado.ioloop import PeriodicCallback

from scalable.errors import ClusterError
from scalable.model import PoolStatus, Starting
from scalable.protocol.pools import UNTAGGED, check_count, check_tag, shown
from scalable.scaling.outlook import Outlook, likeliest, outlooks_on
from scalable.scaling.policy import Claim, PoolObjective, PoolScaler, TargetDuration, shared_out
from scalable.scaling.pool_policy import PoolDecision, PoolPolicy, PoolView
from scalable.scaling.readiness import LARGEST_LOOK, Coming, GraphView, Slots, coming
from scalable.scaling.task_model import Expectation, Kind, Sample, TaskModel, size_bucket
from scalable.scheduler.cluster_state import ClusterState, backlog_of
from scalable.scheduler.task_log import (
    READY,
    EndedTask,
    Listener,
    LoggedTask,
    TaskLog,
    running_tasks,
)
from scalable.units import seconds_of

logger = logging.getLogger("scalable.scheduler")

#: Two lower limits of the time between forecasts of coming tasks: a multiple of the time that a
#: forecast takes, and a number of seconds. They keep forecasts from slowing the scheduler down.
LOOK_SHARE, LOOK_INTERVAL_S = 50.0, 1.0


class _Counted(NamedTuple):
    """Kind of an unfinished task, and the tags and slots that it takes."""

    kind: Kind
    slots: tuple[tuple[str, int], ...]


class Workload(Listener):
    """Counts a scheduler's tasks by pool, kind and state. A task counts once per slot."""

    def __init__(self, scheduler: Scheduler, model: TaskModel | None = None) -> None:
        self.scheduler = scheduler
        self.model = model or TaskModel()
        self.ready_calls: dict[str, Counter[Kind]] = {}
        self.submitted_calls: Counter[str] = Counter()
        self._ready: dict[Any, _Counted] = {}
        self._blocked: dict[Any, _Counted] = {}
        self._outlooks: list[tuple[Outlook, Coming]] = []
        self._look_at = 0.0
        log = TaskLog.of(scheduler)
        for task in scheduler.tasks.values():
            call = log.call(task.key)
            if task.state == "waiting":
                self._block(call)
            elif task.state in READY:
                self._count(call)
            for tag, slots in call.slots:
                self.submitted_calls[tag] += slots
        log.listen(self)

    # Events of the task log -----------------------------------------------------------------------

    def submitted(self, calls: list[LoggedTask]) -> None:
        """Count new tasks as submitted."""
        for call in calls:
            if not call.state and call.key not in self._blocked:
                self.waiting(call)

    def waiting(self, call: LoggedTask) -> None:
        """Count a task as submitted, and as blocked until it is ready."""
        self._leave(call.key)
        self._block(call)
        for tag, slots in call.slots:
            self.submitted_calls[tag] += slots * call.calls

    def ready(self, call: LoggedTask) -> None:
        """Count a task as ready. The size of its input is part of its kind."""
        self._leave(call.key)
        self._count(call)

    def ended(self, end: EndedTask) -> None:
        counted = self._leave(end.call.key)
        if end.succeeded and end.ran and counted is not None:
            self._learn(counted.kind, end)

    def left(self, call: LoggedTask) -> None:
        self._leave(call.key)

    forgotten = left

    def _block(self, call: LoggedTask) -> None:
        kind = Kind(call.slots[0][0], call.name)
        self._blocked[call.key] = _Counted(kind, call.slots)

    def _count(self, call: LoggedTask) -> None:
        kind = Kind(call.slots[0][0], call.name, size_bucket(call.input_bytes))
        self._ready[call.key] = _Counted(kind, call.slots)
        for tag, count in call.slots:
            self.ready_calls.setdefault(tag, Counter())[kind] += count

    def _leave(self, key: Any) -> _Counted | None:
        counted = self._ready.pop(key, None)
        if counted is None:
            return self._blocked.pop(key, None)
        for tag, count in counted.slots:
            kinds = self.ready_calls[tag]
            kinds[counted.kind] -= count
            if not kinds[counted.kind]:
                del kinds[counted.kind]
        return counted

    def _learn(self, kind: Kind, end: EndedTask) -> None:
        began, ended, _, _, memory, bundle, *_ = end.measured
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(kind, ended - began, memory))

    # Counts and forecasts ------------------------------------------------------------------------

    @property
    def graph(self) -> bool:
        """True if any task is blocked by another one."""
        return bool(self._blocked)

    def running_on(self, worker: WorkerState) -> Iterator[tuple[_Counted, float]]:
        for task, elapsed in running_tasks(worker):
            if (call := self._ready.get(task.key)) is not None:
                yield call, elapsed

    def outlooks(self, tag: str, slots: Mapping[str, Any], startup_s: float) -> list[Outlook]:
        """Return the outlooks (possible durations) on a tag's tasks. Empty if none is blocked."""
        if not self._blocked:
            self._outlooks = []
            return []
        now = time.monotonic()
        if now >= self._look_at or not self._outlooks:
            graph = self._graph()
            made = outlooks_on(graph, self.model, startup_s)
            limit = LARGEST_LOOK // len(made)  # all together examine as many tasks as one may
            self._outlooks = [(each, coming(graph, each.lengths, slots, limit)) for each in made]
            spent = time.monotonic() - now
            self._look_at = now + max(LOOK_INTERVAL_S, LOOK_SHARE * spent)
        return [
            outlook._replace(coming=forecast.get(tag, ())) for outlook, forecast in self._outlooks
        ]

    def _graph(self) -> GraphView[Any]:
        running: dict[Any, tuple[Kind, float]] = {}
        for worker in self.scheduler.workers.values():
            for task, elapsed in worker.executing.items():
                if task.processing_on is worker and (call := self._ready.get(task.key)):
                    running[task.key] = (call.kind, elapsed)
        tasks = self.scheduler.tasks
        return GraphView(
            running=running,
            queued={k: call.kind for k, call in self._ready.items() if k not in running},
            blocked={
                key: (call.kind, [other.key for other in tasks[key].waiting_on or ()])
                for key, call in self._blocked.items()
            },
        )


# Adaptive pools -----------------------------------------------------------------------------------

INTERVAL_S = 1.0
#: Maps the objective of a plan to the objective of its pools at run time.
POOL_OBJECTIVES: Mapping[str | None, PoolObjective] = {
    "minimize cost": "cost",
    "minimize time": "time",
}
#: Maps the policy of a plan to the smallest relative gain for which a worker count changes.
HYSTERESIS: Mapping[str | None, float] = {"safe": 0.05, "aggressive": 0.0}
USUAL_HYSTERESIS = 0.005
#: Number of changes kept in the log of an adaptive pool.
LOGGED_CHANGES = 1000


class Adaptation:
    """Adaptive pools of one cluster. ``maximum`` limits the workers of all its pools together."""

    def __init__(self, cluster: ClusterState) -> None:
        self.maximum: int | None = None
        self.model = TaskModel()
        self._cluster = cluster
        self._pools: dict[str, PoolAdaptive] = {}
        self._workload: Workload | None = None

    @property
    def pools(self) -> Mapping[str, PoolAdaptive]:
        return dict(self._pools)

    def begin(
        self, tag: str, minimum: int = 0, maximum: int | None = None, **options: Any
    ) -> PoolAdaptive:
        """Make a pool adaptive. Raises ClusterError for invalid bounds or options."""
        pools = self._cluster.pools()
        check_tag(tag, pools, self._cluster.demand.totals)
        check_count(tag, minimum)
        if maximum is not None:
            check_count(tag, maximum)
        if maximum is not None and maximum < minimum:
            raise ClusterError(
                f"{shown(tag)} cannot adapt: minimum {minimum} is greater than maximum {maximum}"
            )
        adaptive = PoolAdaptive(self, tag, minimum, maximum, **options)
        logger.debug("%s follows its load: %d to %s workers", shown(tag), minimum, maximum)
        self.end(tag)
        self._pools[tag] = adaptive
        adaptive.start(self._cluster.scheduler.loop)
        return adaptive

    def follow(
        self,
        pools: Mapping[str, Sequence[Any]],
        *,
        maximum: int | None = None,
        expectations: Mapping[str, Sequence[Any]] | None = None,
        objective: str | None = None,
        policy: str | None = None,
    ) -> None:
        """Make the pools of a manifest adaptive within their bounds (minimum, maximum).
        ``maximum`` limits all pools together, adaptive or not. ``expectations`` maps task names to
        tag, seconds and bytes. With the policy "safe", counts change only for a clear gain.
        """
        pool_objective = POOL_OBJECTIVES.get(objective, "balance")
        hysteresis = HYSTERESIS.get(policy, USUAL_HYSTERESIS)
        self.maximum = maximum
        expected = {
            (tag, task): Expectation(duration_s, memory)
            for task, (tag, duration_s, memory) in (expectations or {}).items()
        }
        if self._workload is None:
            self.model = TaskModel(expected)
        for tag, (least, most) in pools.items():
            scaler = PoolScaler(pool_objective, hysteresis=hysteresis)
            self.begin(tag, least, most, policy=scaler)

    def end(self, *tags: str, why: str | None = None) -> None:
        """Stop adapting the given pools, which keep their counts. Ignores fixed pools."""
        for tag in tags:
            adaptive = self._pools.pop(tag, None)
            if adaptive is not None:
                adaptive.stop()
                if why is not None:
                    logger.info("%s no longer follows its load: %s", shown(tag), why)

    def look(self, adaptive: PoolAdaptive) -> None:
        """Decide one pool's worker count. With a shared maximum, other pools may change too."""
        pools = self._cluster.pools()
        if self._pools.get(adaptive.tag) is not adaptive or adaptive.tag not in pools:
            return
        adaptive.decide()
        wished = self._cluster.demand.ceiling.limited(self._allotted(pools))
        changes = {tag: count - pools[tag].wanted for tag, count in wished.items()}
        # Pools that shrink come first, so that the common maximum always holds.
        for tag, change in sorted(changes.items(), key=lambda item: item[1]):
            pool = pools[tag]
            count = pool.wanted + change
            # A new order would make a degraded pool start workers again, and they would fail again.
            hopeless = pool.degraded and count > pool.running
            # Another thread, or a listener of an earlier change, may have called end() since.
            following = self._pools.get(tag)
            decided = None if following is None else following.decision
            if change and not hopeless and decided is not None:
                self._cluster.scale({tag: count}, source="adaptive", reason=decided.reason)

    def view(self, tag: str, minimum: int, maximum: int | None) -> PoolView:
        """Return the input of a pool's policy. The first use starts the counting of tasks."""
        cluster, now, pools = self._cluster, time.monotonic(), self._cluster.pools()
        if self._workload is None:
            self._workload = Workload(cluster.scheduler, self.model)
        workload, wanted = self._workload, pools[tag].wanted
        running: dict[Kind, list[float]] = {}
        queued = Counter(workload.ready_calls.get(tag, {}))
        for name, slots in backlog_of(cluster.scheduler, tag).items():
            queued[Kind(tag, name, size_bucket(0))] += slots
        busy = idle = 0
        for worker in cluster.workers(tag, pools):
            leaving = cluster.removals.drains(worker)
            for call, elapsed in workload.running_on(worker):
                slots = dict(call.slots).get(tag, 0)
                queued[call.kind] -= slots
                if not leaving:  # tasks of a leaving worker are not load for the others
                    running.setdefault(call.kind, []).extend([elapsed] * slots)
            busy += bool(worker.processing) and not leaving
            idle += not worker.processing and not leaving
        starts, place = cluster.starts[tag], self._place(tag)
        arriving = starts.expect(wanted - busy - idle, now)
        startup_s = max(starts.typical_s(place.startup_s), *arriving[:1], 0.0)
        all_slots = {t: Slots(max(1, p.running) * p.slots) for t, p in pools.items()}
        ahead = workload.outlooks(tag, all_slots, startup_s)
        return PoolView(
            now=now,
            minimum=minimum,
            maximum=maximum,
            slots=pools[tag].slots,
            wanted=wanted,
            busy=busy,
            idle=idle,
            arriving=arriving,
            queued={kind: count for kind, count in queued.items() if count > 0},
            running={kind: elapsed for kind, elapsed in running.items() if elapsed},
            coming=likeliest(ahead).coming if ahead else (),
            outlooks=ahead,
            submitted=workload.submitted_calls[tag],
            graph=workload.graph,
            startup_s=startup_s,
            billed_startup_s=min(startup_s, place.billed_s),
            billed_least_s=place.billed_least_s,
        )

    def _place(self, tag: str) -> Starting:
        """Return the expected start durations at the preferred manager of a tag."""
        offering = [m.attachment for m in self._cluster.managers if tag in m.attachment.pools]
        if not offering:
            return Starting()
        first = min(offering, key=lambda a: (a.priority, a.prices.get(tag, {}).get("per_hour", 0)))
        return Starting(**first.starting)

    def _allotted(self, pools: Mapping[str, PoolStatus]) -> dict[str, int]:
        decided = {t: p for t, p in self.pools.items() if p.decision is not None and t in pools}
        wished = {tag: pool.wished for tag, pool in decided.items()}
        if self.maximum is None:
            return wished
        others = sum(p.wanted for tag, p in pools.items() if tag not in decided and tag != UNTAGGED)
        claims = {
            tag: Claim(max(pool.minimum, min(pool.busy, wished[tag])), wished[tag], pool.work_s)
            for tag, pool in decided.items()
        }
        return shared_out(self.maximum - others, claims)


class PoolAdaptive:
    """Adaptive pool, whose worker count a policy decides periodically.
    Workers are removed only after ``wait_count`` consecutive decisions find them superfluous.
    ``target_duration`` replaces the policy.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        tag: str,
        minimum: int,
        maximum: int | None,
        *,
        interval: float | str = INTERVAL_S,
        policy: PoolPolicy | None = None,
        wait_count: int = 1,
        target_duration: float | str | None = None,
    ) -> None:
        check_count(tag, wait_count)
        if target_duration is not None and policy is not None:
            raise ClusterError("adapt() takes policy= or target_duration=, not both")
        try:
            self._interval = seconds_of("interval", interval)
            if target_duration is not None:
                policy = TargetDuration(seconds_of("target_duration", target_duration))
        except ValueError as error:
            raise ClusterError(f"{shown(tag)} cannot adapt: {error}") from error
        self.tag = tag
        self.minimum = minimum
        self.maximum = maximum
        self.policy: PoolPolicy = PoolScaler() if policy is None else policy
        self.decision: PoolDecision | None = None
        self.busy = 0
        self.work_s = 0.0
        self.log: deque[tuple[float, dict[str, Any]]] = deque(maxlen=LOGGED_CHANGES)
        self.wait_count = wait_count
        self.periodic_callback: PeriodicCallback | None = None
        self._present = 0
        self._superfluous = 0
        self._adaptation = adaptation
        self._loop: Any = None
        if not 0 < self._interval < math.inf:
            raise ClusterError(
                f"{shown(tag)} cannot adapt: interval {interval!r} is not a positive duration"
            )
        if not callable(getattr(self.policy, "decide", None)):
            raise ClusterError(
                f"{shown(tag)} cannot adapt: policy {policy!r} has no decide() method"
            )

    @property
    def wished(self) -> int:
        """Desired worker count within the bounds, at least the number of busy workers."""
        assert self.decision is not None
        count = max(self.decision.workers, self.minimum, self.busy)
        if self._superfluous < self.wait_count:
            count = max(count, self._present)
        return count if self.maximum is None else min(count, self.maximum)

    def start(self, loop: Any) -> None:
        self._loop = loop
        self.periodic_callback = PeriodicCallback(self.adapt, self._interval * 1000)
        loop.add_callback(self.adapt)
        loop.add_callback(self.periodic_callback.start)

    def stop(self) -> None:
        if self.periodic_callback is not None:
            self._loop.add_callback(self.periodic_callback.stop)
            self.periodic_callback = None

    def adapt(self) -> None:
        if self.periodic_callback is not None:
            self._adaptation.look(self)

    async def target(self) -> int:
        """Return the desired number of workers, as Dask's ``Adaptive.target`` does."""
        if self.decision is None:
            self._adaptation.look(self)
        return self.minimum if self.decision is None else self.wished

    async def recommendations(self, target: int) -> dict[str, Any]:
        """Return the steps to a worker count, as Dask's ``Adaptive.recommendations`` does."""
        return self._recommended(target)

    def _recommended(self, target: int) -> dict[str, Any]:
        if target == self._present:
            return {"status": "same"}
        return {"status": "up" if target > self._present else "down", "n": target}

    def decide(self) -> None:
        model = self._adaptation.model
        view = self._adaptation.view(self.tag, self.minimum, self.maximum)
        self.busy = view.busy
        self.work_s = sum(count * model.mean_s(kind) for kind, count in view.queued.items())
        self.work_s += sum(model.mean_s(k) * len(each) for k, each in view.running.items())
        before = self.decision
        self.decision = self.policy.decide(view, model)
        self._present = view.wanted
        fewer = self.decision.workers < view.wanted
        self._superfluous = self._superfluous + 1 if fewer else 0
        if self.wished != view.wanted:
            self.log.append((time.time(), self._recommended(self.wished)))
        if before is None or before.workers != self.decision.workers:
            logger.debug(
                "%s: the policy requests %d workers instead of %d: %s",
                shown(self.tag),
                self.decision.workers,
                view.wanted,
                self.decision.reason,
            )
