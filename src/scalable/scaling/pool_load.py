"""Known work of a pool at one moment. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalable.scaling.capacity import Portion, merged
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Kind, TaskModel


@dataclass(frozen=True)
class Load:
    """Known work of a pool: its running, queued and expected calls."""

    #: Work that is ready now, or becomes ready before a worker requested now would connect.
    portions: tuple[Portion, ...]
    #: Seconds from the moment when the first later work is ready until all later work has ended.
    rest_s: float
    #: Number of calls that run or wait for a worker, and number of calls that wait for a worker.
    ready: int
    queued: int
    #: ``ready``, plus the calls that become ready before a worker requested now would connect.
    useful: int
    #: Worker-seconds of all known calls.
    work_s: float
    #: Seconds from now until the work ends if no call has to wait for a worker.
    end_s: float
    #: Mean running time in seconds of all known calls, and of the queued calls.
    call_s: float
    queued_s: float


def load_of(view: PoolView, model: TaskModel) -> Load:
    """Return the known work of a pool."""
    portions: list[Portion] = []
    kinds = {*view.running, *view.queued}
    means = {kind: _mean_s(model, kind, view.running.get(kind, ())) for kind in kinds}
    left = [model.residual_s(kind, e) for kind, all_e in view.running.items() for e in all_e]
    queued = sum(view.queued.values())
    if left or queued:
        work = sum(left) + sum(count * means[kind] for kind, count in view.queued.items())
        longest = max(left + [means[kind] for kind, count in view.queued.items() if count])
        portions.append(Portion(0.0, work / view.slots, longest))
    ready = len(left) + queued
    useful = ready
    soon: list[Portion] = []
    later: list[Portion] = []
    for ready_s, kind, count in view.coming:
        if kind not in means:
            means[kind] = model.mean_s(kind)
        mean = means[kind]
        portion = Portion(ready_s, count * mean / view.slots, mean)
        (soon if ready_s <= view.startup_s else later).append(portion)
        useful += count if ready_s <= view.startup_s else 0
    portions += merged(soon)
    rest_s = 0.0
    if later:
        end = max(p.ready_s + p.longest_s for p in later)
        rest_s = end - min(p.ready_s for p in later)
    counts = [(kind, len(elapsed)) for kind, elapsed in view.running.items()]
    counts += [*view.queued.items(), *((kind, count) for _, kind, count in view.coming)]
    calls = sum(count for _, count in counts)
    call_s = sum(means[kind] * count for kind, count in counts) / calls if calls else 1.0
    work_s = sum(p.work_s for p in (*portions, *later))
    queued_s = sum(means[kind] * count for kind, count in view.queued.items()) / max(1, queued)
    end_s = max((p.ready_s + p.longest_s for p in (*portions, *later)), default=0.0)
    return Load(
        tuple(portions),
        rest_s,
        ready,
        queued,
        useful,
        work_s,
        end_s,
        call_s,
        max(queued_s, 1e-3),
    )


def _mean_s(model: TaskModel, kind: Kind, running: Sequence[float]) -> float:
    """Return the mean running time of a kind's calls in seconds; running calls count as well.

    :meth:`TaskModel.mean_s` assumes that calls end at random moments. If all calls take equally
    long and many of them started together, its estimate is far too high until the first call ends.
    The estimate is therefore limited to twice the longest time that a call has run.
    """
    plain = model.mean_s(kind)
    if not running:
        return plain
    return min(model.mean_s(kind, running), max(plain, 2 * max(running)))


def delays_s(view: PoolView) -> list[float]:
    """Return the seconds until each starting worker is expected to connect, the soonest first."""
    late = 0.1 * view.startup_s
    return sorted(max(view.startup_s - since, late) for since in view.arriving)
