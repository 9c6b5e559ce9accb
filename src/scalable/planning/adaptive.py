"""Which pools of a target follow their load, and within which bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalable.planning.counts import worker_counts, written_total
from scalable.spec import DeploymentSpec, Plan, WorkerRange

#: Task -> component, and the expected seconds and bytes of one call, each or None; as JSON values.
Expectations = Mapping[str, tuple[str, float | None, int | None]]


@dataclass(frozen=True)
class AdaptiveBounds:
    """Bounds of the pools of a target while it runs.

    Attributes
    ----------
    pools
        Tag -> bounds of each pool that follows its load; those of a fixed size are left out.
    maximum
        Most workers of all pools together, None without.
    """

    pools: Mapping[str, WorkerRange] = field(default_factory=dict)
    maximum: int | None = None


def adaptive_bounds(spec: DeploymentSpec) -> AdaptiveBounds:
    """The bounds of a target's pools; no pool follows its load where it is not ``adaptive``.

    A pool runs within its component's ``workers``, without from zero on. What the target's minimum
    is above the pools' own together is spread evenly over them.

    Parameters
    ----------
    spec
        A request without conflicts.
    """
    if spec.adaptive is None:
        return AdaptiveBounds()
    # Without expected work every pool weighs the same, and none has to have a worker.
    idle = replace(spec, tasks={}, written_options=frozenset(), adaptive=spec.adaptive)
    floors = worker_counts(idle)
    pools = {}
    for tag, component in spec.components.items():
        own = component.workers or WorkerRange()
        if own.fixed is None:
            pools[tag] = WorkerRange(floors[tag], own.maximum)
    return AdaptiveBounds(pools, total_maximum(spec))


def expectations(spec: DeploymentSpec, plan: Plan | None = None) -> Expectations:
    """What is expected of the calls of each task: what earlier runs tell, or else the manifest.

    Parameters
    ----------
    spec
        The manifest.
    plan
        Holds what earlier runs tell.
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
    """Most workers of all pools together; None where the target does not say."""
    written = written_total(spec)
    own = None if spec.adaptive is None else spec.adaptive.maximum
    limits = [own, None if written is None else written[1]]
    return min((limit for limit in limits if limit is not None), default=None)
