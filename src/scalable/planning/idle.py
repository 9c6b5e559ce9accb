"""Workers that would have nothing to do, as earlier runs tell. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalable.planning.counts import FIRST_TOTAL, worker_counts, written_total
from scalable.planning.knowledge import Knowledge
from scalable.planning.work import Calls, slots_of
from scalable.spec import DeploymentSpec
from scalable.units import counted


@dataclass(frozen=True)
class IdleWorkers:
    """Workers of one pool for which no call is known.

    Attributes
    ----------
    tag
        The pool.
    workers
        Number of workers that the manifest's rule gives the pool.
    useful
        Number of workers that can be busy at once.
    given
        Number of workers that the plan gives the pool.
    calls
        Greatest number of calls that the pool is known to run.
    """

    tag: str
    workers: int
    useful: int
    given: int
    calls: int

    @property
    def left_out(self) -> int:
        """Number of workers that the plan does not give the pool."""
        return self.workers - self.given


def known_calls(
    spec: DeploymentSpec, knowledge: Knowledge, calls: Sequence[Calls]
) -> dict[str, int]:
    """Return tag -> greatest number of calls, of the pools whose calls earlier runs tell.

    It is the greatest number of calls in one of the latest runs, or the planned number if that is
    greater. A pool with a guessed number of calls has no entry.
    """
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
    """Return the manifest's worker counts, without workers that would have nothing to do.

    Workers that the manifest asks for are kept: the minimum of ``workers`` of a component, the sum
    ``n_workers`` of all pools, and ``adaptive.minimum``. What one pool does not use goes to the
    others, as far as it is useful there.

    Parameters
    ----------
    spec
        A deployment for which :func:`.counts.conflicts` returns nothing.
    known
        Result of :func:`known_calls`.
    """
    return worker_counts(spec, {tag: _useful(spec, tag, n) for tag, n in known.items()})


def idle_workers(
    spec: DeploymentSpec, known: Mapping[str, int], given: Mapping[str, int], *, default: bool
) -> Iterator[IdleWorkers]:
    """Yield the pools with idle workers, also those from which the plan has taken them.

    Parameters
    ----------
    spec, known
        As for :func:`counts_without_idle`.
    given
        Tag -> number of workers in the plan.
    default
        Whether the plan has no objective, so that its counts follow from the manifest's rule.
    """
    before = worker_counts(spec) if default else given
    for tag, calls in known.items():
        useful, workers = _useful(spec, tag, calls), max(before[tag], given[tag])
        if workers > useful:
            yield IdleWorkers(tag, workers, useful, given[tag], calls)


def idle_sentence(spec: DeploymentSpec, idle: IdleWorkers) -> str:
    """Return a sentence about the idle workers of a pool, and the reason why the plan has any."""
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
