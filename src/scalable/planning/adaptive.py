"""Adaptive pools of a target, their bounds, and the expected lengths of their calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalable.planning.counts import worker_counts, written_total
from scalable.spec import DeploymentSpec, Plan, WorkerRange

#: Task -> component, expected seconds and expected bytes of one call (None if unknown), as JSON.
Expectations = Mapping[str, tuple[str, float | None, int | None]]


@dataclass(frozen=True)
class AdaptiveBounds:
    """Bounds of adaptive pools.

    Attributes
    ----------
    pools
        Tag -> bounds of the pool; pools of a fixed size are not included.
    maximum
        Maximum number of workers of all pools together; None for no maximum.
    """

    pools: Mapping[str, WorkerRange] = field(default_factory=dict)
    maximum: int | None = None


def adaptive_bounds(spec: DeploymentSpec) -> AdaptiveBounds:
    """Return the bounds of a target's pools; without ``adaptive`` no pool is adaptive.

    The bounds of a pool are its component's ``workers``, by default from zero to unlimited. A
    minimum of the target that exceeds the sum of the pools' minima is spread evenly over the pools.

    Parameters
    ----------
    spec
        A deployment without conflicts.
    """
    if spec.adaptive is None:
        return AdaptiveBounds()
    # Without tasks every pool has the same weight and a minimum of zero.
    idle = replace(spec, tasks={}, written_options=frozenset(), adaptive=spec.adaptive)
    floors = worker_counts(idle)
    pools = {}
    for tag, component in spec.components.items():
        own = component.workers or WorkerRange()
        if own.fixed is None:
            pools[tag] = WorkerRange(floors[tag], own.maximum)
    return AdaptiveBounds(pools, total_maximum(spec))


def expectations(spec: DeploymentSpec, plan: Plan | None = None) -> Expectations:
    """Return the expected length and memory of calls, from earlier runs or from the manifest.

    Parameters
    ----------
    spec
        The deployment, with the expectations of the manifest.
    plan
        A plan with forecasts from earlier runs.
    """
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
    """Return the maximum number of workers of all pools together; None for no maximum."""
    written = written_total(spec)
    own = None if spec.adaptive is None else spec.adaptive.maximum
    limits = [own, None if written is None else written[1]]
    return min((limit for limit in limits if limit is not None), default=None)
