"""Known work of a pool at one moment. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from scalable.scaling.beliefs import Beliefs
from scalable.scaling.capacity import Portion, merged
from scalable.scaling.outlook import Outlook, outlooks
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Kind, TaskModel

#: Least spread of the belief about a kind's duration with which the duration is in doubt.
DOUBTFUL_SPREAD = 0.3
#: Share of the doubtful work whose durations must be known before a better decision is possible.
LEARNED_SHARE = 0.8


@dataclass(frozen=True)
class Load:
    """Known work of a pool: its running, queued and expected tasks."""

    #: Work that is ready now, or becomes ready before a worker requested now would connect.
    portions: tuple[Portion, ...]
    #: Seconds from when the first later work is ready until all later work has finished.
    rest_s: float
    #: Number of tasks that wait for a worker.
    queued: int
    #: Number of tasks that run, wait for a worker, or become ready before a worker requested now
    #: would connect.
    useful: int
    #: Worker-seconds of all known tasks.
    work_s: float
    #: Seconds from now until the work finishes if no task has to wait for a worker.
    end_s: float
    #: Mean duration in seconds of all known tasks, and of the queued tasks.
    call_s: float
    queued_s: float
    #: Seconds until blocked tasks are ready and their number, the soonest first.
    coming: tuple[tuple[float, int], ...]
    #: Seconds until the durations of most of the doubtful work are known; None without doubt.
    learned_s: float | None


def outlooks_of(view: PoolView, model: TaskModel) -> list[Outlook]:
    """Return the outlooks of the view, or else those of the model."""
    if view.outlooks:
        return list(view.outlooks)
    unfinished = Counter(view.queued)
    unfinished.update({kind: len(elapsed) for kind, elapsed in view.running.items()})
    for _, kind, count in view.coming:
        unfinished[kind] += count
    beliefs = Beliefs(model, view.running, view.startup_s, unfinished)
    return [outlook._replace(coming=view.coming) for outlook in outlooks(beliefs, unfinished)]


def load_of(view: PoolView, outlook: Outlook) -> Load:
    """Return the known work of a pool in one outlook."""
    portions: list[Portion] = []
    lengths = outlook.lengths
    means = {kind: lengths.mean_s(kind) for kind in (*view.running, *view.queued)}
    left = [lengths.residual_s(kind, e) for kind, all_e in view.running.items() for e in all_e]
    queued = sum(view.queued.values())
    if left or queued:
        work = sum(left) + sum(count * means[kind] for kind, count in view.queued.items())
        longest = max(left + [means[kind] for kind, count in view.queued.items() if count])
        portions.append(Portion(0.0, work / view.slots, longest))
    useful = len(left) + queued
    soon: list[Portion] = []
    later: list[Portion] = []
    for ready_s, kind, count in outlook.coming:
        mean = means[kind] = lengths.mean_s(kind)
        portion = Portion(ready_s, count * mean / view.slots, mean)
        (soon if ready_s <= view.startup_s else later).append(portion)
        useful += count if ready_s <= view.startup_s else 0
    portions += merged(soon)
    rest_s = 0.0
    if later:
        end = max(p.ready_s + p.longest_s for p in later)
        rest_s = end - min(p.ready_s for p in later)
    counts = [(kind, len(elapsed)) for kind, elapsed in view.running.items()]
    counts += [*view.queued.items(), *((kind, count) for _, kind, count in outlook.coming)]
    calls = sum(count for _, count in counts)
    call_s = sum(means[kind] * count for kind, count in counts) / calls if calls else 1.0
    work_s = sum(p.work_s for p in (*portions, *later))
    queued_s = sum(means[kind] * count for kind, count in view.queued.items()) / max(1, queued)
    end_s = max((p.ready_s + p.longest_s for p in (*portions, *later)), default=0.0)
    return Load(
        tuple(portions),
        rest_s,
        queued,
        useful,
        work_s,
        end_s,
        call_s,
        max(queued_s, 1e-3),
        tuple((ready_s, count) for ready_s, _, count in outlook.coming),
        _learned_s(view, outlook, means),
    )


def _learned_s(view: PoolView, outlook: Outlook, means: Mapping[Kind, float]) -> float | None:
    """Return the seconds until tasks of the kinds with most of the doubtful work have finished."""
    lengths = outlook.lengths
    connects = 0.0 if view.busy + view.idle else next(iter(delays_s(view)), view.startup_s)
    work_s: dict[Kind, float] = {}
    ends_s: dict[Kind, float] = {}
    for kind, elapsed in view.running.items():
        work_s[kind] = len(elapsed) * means[kind]
        ends_s[kind] = lengths.residual_s(kind, max(elapsed, default=0.0))
    for kind, count in view.queued.items():
        work_s[kind] = work_s.get(kind, 0.0) + count * means[kind]
        ends_s.setdefault(kind, connects + means[kind])
    for ready_s, kind, count in outlook.coming:
        work_s[kind] = work_s.get(kind, 0.0) + count * means[kind]
        ends_s.setdefault(kind, max(connects, ready_s) + means[kind])
    doubtful = [kind for kind in work_s if lengths.doubt(kind) > DOUBTFUL_SPREAD]
    doubts = {kind: work_s[kind] * min(1.0, lengths.doubt(kind)) for kind in doubtful}
    left = LEARNED_SHARE * sum(doubts.values())
    for kind in sorted(doubtful, key=lambda kind: ends_s[kind]):
        left -= doubts[kind]
        if left <= 0:
            return ends_s[kind]
    return None


def delays_s(view: PoolView) -> list[float]:
    """Return the seconds until each starting worker is expected to connect, the soonest first."""
    late = 0.1 * view.startup_s
    return sorted(max(view.startup_s - since, late) for since in view.arriving)
