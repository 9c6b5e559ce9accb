"""Scaling rules of other systems, to compare them with this project's policy.

Each rule was written from the description of the other system and uses the defaults of that system.
A block or an allocation of the other system is one worker here. A rule never removes a busy worker,
even if the other system does.
"""

from __future__ import annotations

import math
from collections import deque

from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import Kind, TaskModel


def _present(view: PoolView) -> int:
    """Return the number of workers that are connected or starting."""
    return view.busy + view.idle + len(view.arriving)


def _bounded(view: PoolView, count: int) -> int:
    high = math.inf if view.maximum is None else view.maximum
    return int(min(max(count, view.minimum), high))


def _ready(view: PoolView) -> int:
    """Return the number of calls that are running or ready."""
    return sum(view.queued.values()) + sum(len(elapsed) for elapsed in view.running.values())


class Fixed:
    """A constant worker count: the pool's maximum, or its minimum, at least one."""

    every_s = 5.0

    def __init__(self, *, most: bool) -> None:
        self.most = most

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        if self.most and view.maximum is not None:
            return PoolDecision(view.maximum, "the maximum")
        return PoolDecision(_bounded(view, max(1, view.minimum)), "the minimum")


class DaskAdaptive:
    """Rule of ``distributed.Adaptive``: enough workers to finish the known work in five seconds."""

    every_s = 1.0
    target_s = 5.0
    wait_count = 3
    unknown_s = 0.5

    def __init__(self) -> None:
        self._means: dict[Kind, float] = {}
        self._longest: dict[Kind, float] = {}
        self._nominated: deque[int] = deque(maxlen=self.wait_count)

    def ended(self, kind: Kind, duration_s: float) -> None:
        known = self._means.get(kind)
        self._means[kind] = duration_s if known is None else 0.5 * duration_s + 0.5 * known

    def _mean_s(self, kind: Kind) -> float:
        if kind in self._means:
            return self._means[kind]
        return 2 * self._longest[kind] if kind in self._longest else self.unknown_s

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        for kind, elapsed in view.running.items():
            longest = max(elapsed)
            self._longest[kind] = max(longest, self._longest.get(kind, 0.0))
            if longest > 2 * self._means.get(kind, math.inf):
                del self._means[kind]
        plan = _present(view)
        target = _bounded(view, self._target(view))
        if target >= plan:
            self._nominated.clear()
            return PoolDecision(target, "the known work takes longer than five seconds")
        late = min(plan - target, len(view.arriving))
        self._nominated.append(late + min(view.idle, plan - target - late))
        if len(self._nominated) < self.wait_count:
            return PoolDecision(plan, "too many workers, but for fewer than three looks")
        return PoolDecision(plan - min(self._nominated), "too many workers for three looks")

    def _target(self, view: PoolView) -> int:
        occupancy = sum(n * self._mean_s(kind) for kind, n in view.queued.items())
        occupancy += sum(len(e) * self._mean_s(kind) for kind, e in view.running.items())
        threads = math.ceil(occupancy / self.target_s)
        target = math.ceil(min(threads, _ready(view)) / view.slots)
        connected = view.busy + view.idle
        if view.queued and not connected:
            target = max(1, target)
        return target if target >= connected else view.busy


class Parsl:
    """Rule of Parsl: one slot for each call, and no workers after two minutes without calls."""

    every_s = 5.0
    parallelism = 1.0
    max_idletime_s = 120.0

    def __init__(self, *, scales_in: bool = False) -> None:
        self.scales_in = scales_in
        self._quiet_since: float | None = None
        self._idle_since: list[float] = []

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        del self._idle_since[view.idle :]
        self._idle_since += [view.now] * (view.idle - len(self._idle_since))
        blocks, tasks = _present(view), _ready(view)
        slots = blocks * view.slots
        if not tasks:
            if self._quiet_since is None:
                self._quiet_since = view.now
            if view.now - self._quiet_since < self.max_idletime_s:
                return PoolDecision(_bounded(view, blocks), "no calls for less than two minutes")
            return PoolDecision(_bounded(view, 0), "no calls")
        self._quiet_since = None
        if slots < self.parallelism * tasks:
            more = math.ceil((tasks * self.parallelism - slots) / view.slots)
            return PoolDecision(_bounded(view, blocks + more), "fewer slots than calls")
        if self.scales_in and slots > tasks:
            old = sum(view.now - since > self.max_idletime_s for since in self._idle_since)
            fewer = min(old, (slots - tasks) // view.slots)
            return PoolDecision(_bounded(view, blocks - fewer), "idle blocks")
        return PoolDecision(_bounded(view, blocks), "as many slots as calls")


class HyperQueue:
    """Rule of HyperQueue's automatic allocation."""

    every_s = 5.0
    idle_timeout_s = 300.0

    def __init__(self, backlog: int = 1) -> None:
        self.backlog = backlog
        self._idle_since: list[float] = []

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        del self._idle_since[view.idle :]
        self._idle_since += [view.now] * (view.idle - len(self._idle_since))
        present, pending = _present(view), len(view.arriving)
        unserved = sum(view.queued.values()) - pending * view.slots
        if unserved > 0:
            more = min(self.backlog - pending, math.ceil(unserved / view.slots))
            return PoolDecision(_bounded(view, present + max(0, more)), "calls without a worker")
        old = sum(view.now - since > self.idle_timeout_s for since in self._idle_since)
        if view.arriving:
            old = 0  # a smaller count would remove starting workers first
        return PoolDecision(_bounded(view, present - old), "idle for five minutes")


class OpenGris:
    """Rule of OpenGRIS Scaler: one to ten calls per worker; it adds one worker at a time."""

    every_s = 2.0
    lower, upper = 1.0, 10.0

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        workers, tasks = _present(view), _ready(view)
        if not workers:
            return PoolDecision(_bounded(view, min(1, tasks)), "calls without a worker")
        if tasks / workers > self.upper:
            return PoolDecision(_bounded(view, workers + 1), "more than ten calls for each worker")
        if tasks / workers < self.lower:
            fewer = math.ceil(tasks / self.upper)
            return PoolDecision(_bounded(view, fewer), "less than one call for each worker")
        return PoolDecision(_bounded(view, workers), "one to ten calls for each worker")


class JgcriScalable:
    """Rule of JGCRI's Scalable: 0.2 to 0.8 pending calls per worker, evaluated once a minute."""

    every_s = 5.0
    up, down = 0.8, 0.2
    cooldown_s = 60.0

    def __init__(self) -> None:
        self._looked: float | None = None

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:  # noqa: ARG002
        active, pending = _present(view), sum(view.queued.values())
        if self._looked is not None and view.now - self._looked < self.cooldown_s:
            return PoolDecision(_bounded(view, active), "within the cooldown")
        self._looked = view.now
        if not active:
            return PoolDecision(_bounded(view, pending), "calls without a worker")
        if not pending:
            return PoolDecision(_bounded(view, 0), "no pending calls")
        if pending / active > self.up:
            more = max(active, int(pending / self.up))
            return PoolDecision(_bounded(view, more), "more pending calls than workers")
        if pending / active < self.down:
            fewer = min(active, math.ceil(pending / self.up))
            return PoolDecision(_bounded(view, fewer), "few pending calls")
        return PoolDecision(_bounded(view, active), "between the thresholds")
