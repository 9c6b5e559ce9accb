"""Workers that would be idle, judging by earlier runs. Does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalable.model import DeploymentSpec
from scalable.planning.counts import FIRST_TOTAL, written_total
from scalable.planning.knowledge import Knowledge
from scalable.planning.work import ExpectedTasks, slots_of


@dataclass(frozen=True)
class IdleWorkers:
    """Workers of one pool without known tasks."""

    tag: str
    #: Number of workers in the plan.
    workers: int
    #: Number of workers that can be busy at once.
    useful: int
    #: Greatest known number of tasks of the pool.
    calls: int


def known_calls(
    spec: DeploymentSpec, knowledge: Knowledge, calls: Sequence[ExpectedTasks]
) -> dict[str, int]:
    """Map the pools used by earlier runs to their largest known numbers of tasks."""
    # A pool with a guessed number of tasks has no entry.
    planned = dict.fromkeys(spec.components, 0)
    guessed = set()
    for c in calls:
        planned[c.tag] += c.count
        if c.counted == "guess":
            guessed.add(c.tag)
    return {
        tag: max(most, planned[tag])
        for tag, most in knowledge.busiest.items()
        if most and tag in planned and tag not in guessed
    }


def idle_workers(
    spec: DeploymentSpec, known: Mapping[str, int], given: Mapping[str, int]
) -> Iterator[IdleWorkers]:
    """Yield the pools with more workers than known tasks (from :func:`known_calls`)."""
    for tag, calls in known.items():
        useful = math.ceil(calls / slots_of(spec, tag))
        if given[tag] > useful:
            yield IdleWorkers(tag, given[tag], useful, calls)


def idle_sentence(spec: DeploymentSpec, idle: IdleWorkers) -> str:
    """Return a sentence about a pool's idle workers, and the setting that requests them."""
    told = (
        f"{idle.workers - idle.useful} of {idle.workers} {idle.tag} workers would be idle if this "
        f"run sends no more tasks to the pool than earlier runs, at most {idle.calls}; "
    )
    component, total = spec.components[idle.tag].workers, written_total(spec)
    if component is not None and component.minimum >= idle.workers:
        return f"{told}`components.{idle.tag}.workers` requests {idle.workers}."
    if total is not None and (spec.adaptive is None or total[0] == FIRST_TOTAL):
        return f"{told}`{total[0]}: {total[1]}` of the target requests them."
    return f"{told}`adaptive` of the target requests them."
