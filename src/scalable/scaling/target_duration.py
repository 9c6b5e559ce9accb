"""Policy with the rule of Dask's ``target_duration``."""

from __future__ import annotations

import math

from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import TaskModel


class TargetDuration:
    """Policy under which the known work finishes within a time, without idle slots."""

    def __init__(self, target_s: float) -> None:
        if not 0 < target_s < math.inf:
            raise ValueError(f"target_duration {target_s!r} is not a positive duration")
        self.target_s = target_s

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        calls = sum(view.queued.values()) + sum(len(each) for each in view.running.values())
        work_s = sum(count * model.mean_s(kind) for kind, count in view.queued.items())
        work_s += sum(len(each) * model.mean_s(kind) for kind, each in view.running.items())
        slots = min(calls, math.ceil(work_s / self.target_s))
        count = max(math.ceil(slots / view.slots), view.busy, min(calls, 1), view.minimum)
        if view.maximum is not None:
            count = min(count, view.maximum)
        return PoolDecision(
            count, f"{work_s:.3g} s of work in {calls} calls, to end within {self.target_s:g} s"
        )
