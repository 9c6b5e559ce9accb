"""Bounds of the adaptive pools of a target, and expected lengths of their calls. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalable.planning.counts import total_limit, worker_counts
from scalable.spec import DeploymentSpec, Plan, WorkerRange

#: Task -> component, expected seconds and expected bytes of one call (None if unknown), as JSON.
Expectations = Mapping[str, tuple[str, float | None, int | None]]


@dataclass(frozen=True)
class AdaptiveBounds:
    """Bounds of the worker counts of adaptive pools: pools that grow and shrink with their load.

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
    """Return the bounds of a target's adaptive pools; empty if the target has no ``adaptive``.

    The bounds of a pool are its component's ``workers``, by default zero and no maximum. If the
    target's minimum exceeds the sum of the pools' minima, the pools' minima are raised evenly.

    Parameters
    ----------
    spec
        A deployment for which :func:`.counts.conflicts` returns nothing.
    """
    if spec.adaptive is None:
        return AdaptiveBounds()
    # Without tasks all pools have the same weight, and their minimum is zero by default.
    idle = replace(spec, tasks={}, written_options=frozenset(), adaptive=spec.adaptive)
    floors = worker_counts(idle)
    pools = {}
    for tag, component in spec.components.items():
        own = component.workers or WorkerRange()
        if own.fixed is None:
            pools[tag] = WorkerRange(floors[tag], own.maximum)
    return AdaptiveBounds(pools, total_maximum(spec))


def expectations(spec: DeploymentSpec, plan: Plan | None = None) -> Expectations:
    """Return the expected running time and memory of a call of each task.

    Values of earlier runs are preferred to values of the manifest.

    Parameters
    ----------
    spec
        The deployment; its tasks contain the values of the manifest.
    plan
        A plan that contains forecasts from earlier runs; None for the manifest alone.
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
    limit = total_limit(spec)
    return None if limit is None else limit[1]
