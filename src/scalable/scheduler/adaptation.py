"""Adaptive pools: the worker count of each pool follows the pool's load."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tornado.ioloop import PeriodicCallback

from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.protocol.pools import UNTAGGED, check_count, check_tag, shown
from scalable.scaling.policy import Claim, PoolObjective, PoolScaler, TargetDuration, shared_out
from scalable.scaling.pool_policy import PoolDecision, PoolPolicy
from scalable.scaling.task_model import Expectation, TaskModel
from scalable.scheduler.pool_facts import ClusterState, PoolViews
from scalable.scheduler.workload import Workload
from scalable.units import seconds_of

logger = logging.getLogger("scalable.scheduler")

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
        self._views: PoolViews | None = None

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

    def connected(self, worker: Any) -> None:
        """Record a connected worker, to measure how long workers take to start."""
        if self._views is not None:
            self._views.connected(worker)

    def look(self, adaptive: PoolAdaptive) -> None:
        """Decide one pool's worker count. With a shared maximum, other pools may change too."""
        pools = self._cluster.pools()
        if self._pools.get(adaptive.tag) is not adaptive or adaptive.tag not in pools:
            return
        adaptive.decide(self._measured(), self.model)
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
            if change and not hopeless and following is not None:
                reason = following.reason
                self._cluster.scale({tag: count}, source="adaptive", reason=reason)

    def _measured(self) -> PoolViews:
        """Return the input of the policies. The first use starts the counting of tasks."""
        if self._views is None:
            self._workload = Workload(self._cluster.scheduler, self.model)
            self._views = PoolViews(self._cluster, self._workload)
        return self._views

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
        if target_duration is not None:
            if policy is not None:
                raise ClusterError("adapt() takes policy= or target_duration=, not both")
            policy = _target(tag, target_duration)
        check_count(tag, wait_count)
        self.tag = tag
        self.minimum = minimum
        self.maximum = maximum
        self.policy: PoolPolicy = PoolScaler() if policy is None else policy
        self.decision: PoolDecision | None = None
        self.busy = 0
        self.work_s = 0.0
        self.took_s = 0.0
        self.log: deque[tuple[float, dict[str, Any]]] = deque(maxlen=LOGGED_CHANGES)
        self.wait_count = wait_count
        self.periodic_callback: PeriodicCallback | None = None
        self._present = 0
        self._superfluous = 0
        self._adaptation = adaptation
        self._loop: Any = None
        try:
            self._interval = seconds_of("interval", interval)
        except ValueError as error:
            raise ClusterError(f"{shown(tag)} cannot adapt: {error}") from error
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

    @property
    def reason(self) -> str:
        assert self.decision is not None
        return self.decision.reason

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

    def decide(self, views: PoolViews, model: TaskModel) -> None:
        began = time.perf_counter()
        view = views.view(self.tag, self.minimum, self.maximum)
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
        self.took_s = time.perf_counter() - began


def _target(tag: str, target_duration: float | str) -> TargetDuration:
    try:
        return TargetDuration(seconds_of("target_duration", target_duration))
    except ValueError as error:
        raise ClusterError(f"{shown(tag)} cannot adapt: {error}") from error
