"""Bounds of a target's adaptive pools, and expected durations of tasks. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalable.model import DeploymentSpec, Plan, WorkerRange
from scalable.planning.counts import total_limit, worker_counts

#: Component, expected seconds and expected bytes (None if unknown) of one task, by task name.
Expectations = Mapping[str, tuple[str, float | None, int | None]]


@dataclass(frozen=True)
class PoolBounds:
    """Bounds of the worker counts of adaptive pools."""

    #: Bounds by tag, without the pools of a fixed size.
    pools: Mapping[str, WorkerRange] = field(default_factory=dict)
    #: Maximum number of workers of all pools together.
    maximum: int | None = None


def adaptive_bounds(spec: DeploymentSpec) -> PoolBounds:
    """Return the bounds of a target's adaptive pools, empty without ``adaptive``.
    ``spec`` must have no :func:`.counts.conflicts`. If the target's minimum exceeds the sum of the
    pools' minima, these are raised evenly.
    """
    if spec.adaptive is None:
        return PoolBounds()
    # Without tasks all pools have the same weight, and their minimum is zero by default.
    idle = replace(spec, tasks={}, written_options=frozenset(), adaptive=spec.adaptive)
    floors = worker_counts(idle)
    pools = {}
    for tag, component in spec.components.items():
        own = component.workers or WorkerRange()
        if own.fixed is None:
            pools[tag] = WorkerRange(floors[tag], own.maximum)
    return PoolBounds(pools, total_maximum(spec))


def expectations(spec: DeploymentSpec, plan: Plan | None = None) -> Expectations:
    """Map task names to (tag, seconds, bytes). Measured values override the manifest's."""
    known = {
        name: (task.tag, task.mean_s, task.memory)
        for name, task in (plan.tasks if plan is not None else {}).items()
        if task.source == "history"
    }
    return known | {
        task.name: (
            task.component,
            task.duration_s,
            task.memory_bytes,
        )
        for task in spec.tasks.values()
        if task.name not in known and (task.duration_s is not None or task.memory is not None)
    }


def total_maximum(spec: DeploymentSpec) -> int | None:
    """Return the maximum number of workers of all pools together, if any."""
    limit = total_limit(spec)
    return None if limit is None else limit[1]
