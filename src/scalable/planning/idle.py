"""Workers that would be idle according to earlier runs. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalable.model import DeploymentSpec
from scalable.planning.counts import FIRST_TOTAL, worker_counts, written_total
from scalable.planning.knowledge import Knowledge
from scalable.planning.work import Calls, slots_of
from scalable.units import counted


@dataclass(frozen=True)
class IdleWorkers:
    """Workers of one pool for which no task is known."""

    tag: str
    #: Number by the rule of the manifest.
    workers: int
    #: Number that can be busy at once.
    useful: int
    #: Number in the plan.
    given: int
    #: Greatest known number of tasks of the pool.
    calls: int

    @property
    def left_out(self) -> int:
        """Number of workers that the plan omits."""
        return self.workers - self.given


def known_calls(
    spec: DeploymentSpec, knowledge: Knowledge, calls: Sequence[Calls]
) -> dict[str, int]:
    """Return the greatest known number of tasks of each pool that earlier runs used."""
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


def counts_without_idle(spec: DeploymentSpec, known: Mapping[str, int]) -> dict[str, int]:
    """Return the manifest's worker counts without workers that would be idle.

    These go to other pools as far as they are useful there. :func:`.counts.conflicts` must return
    nothing for ``spec``, and ``known`` comes from :func:`known_calls`.
    """
    return worker_counts(spec, {tag: _useful(spec, tag, n) for tag, n in known.items()})


def idle_workers(
    spec: DeploymentSpec, known: Mapping[str, int], given: Mapping[str, int], *, default: bool
) -> Iterator[IdleWorkers]:
    """Yield the pools with idle workers, including those that the plan has removed."""
    # Without an objective (``default``), the counts follow from the manifest's rule.
    before = worker_counts(spec) if default else given
    for tag, calls in known.items():
        useful, workers = _useful(spec, tag, calls), max(before[tag], given[tag])
        if workers > useful:
            yield IdleWorkers(tag, workers, useful, given[tag], calls)


def idle_sentence(spec: DeploymentSpec, idle: IdleWorkers) -> str:
    """Return a sentence about a pool's idle workers, with the reason if the plan has any."""
    spare = idle.workers - idle.useful
    told = (
        f"{spare} of {idle.workers} {idle.tag} workers would idle: earlier runs sent at most "
        f"{counted(idle.calls, 'call')} to the pool"
    )
    if idle.given <= idle.useful:
        return f"{told}, so it gets {idle.given}."
    component, total = spec.components[idle.tag].workers, written_total(spec)
    if component is not None and component.minimum >= idle.given:
        return f"{told}; `components.{idle.tag}.workers` asks for {idle.given}."
    if total is not None and total[0] == FIRST_TOTAL:
        return f"{told}; `{FIRST_TOTAL}: {total[1]}` of the target asks for them."
    return f"{told}; `adaptive.minimum` of the target asks for them."


def _useful(spec: DeploymentSpec, tag: str, calls: int) -> int:
    return math.ceil(calls / slots_of(spec, tag))
