"""How long the expected work takes with the workers of a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from graphlib import TopologicalSorter

from scalable.spec import DeploymentSpec


def expected_duration(spec: DeploymentSpec, workers: Mapping[str, int]) -> float | None:
    """Seconds until all expected calls have run, once the workers are there.

    Neither pools that run more tasks than they have workers for, nor chains of tasks, can be
    faster; calls that take unequally long, and queues, make it slower.

    Parameters
    ----------
    spec
        The request.
    workers
        Tag -> workers.

    Returns
    -------
    float or None
        None where a task does not say how many calls of which length it is, or has no worker.
    """
    lengths: dict[str, float] = {}
    pools: dict[str, float] = {}
    for task in spec.tasks.values():
        at_once = workers.get(task.component, 0) * _slots(spec, task.component)
        if task.count is None or task.duration_s is None or not at_once:
            return None
        lengths[task.name] = math.ceil(task.count / at_once) * task.duration_s
        work = task.count * task.duration_s / at_once
        pools[task.component] = pools.get(task.component, 0.0) + work
    if not lengths:
        return None
    ends: dict[str, float] = {}
    for name in TopologicalSorter({t.name: t.after for t in spec.tasks.values()}).static_order():
        began = max((ends[other] for other in spec.tasks[name].after), default=0.0)
        ends[name] = began + lengths[name]
    return max(*pools.values(), *ends.values())


def _slots(spec: DeploymentSpec, tag: str) -> int:
    return int(spec.options.get("threads_per_worker") or spec.components[tag].slots)
