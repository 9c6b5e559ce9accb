"""Outlooks: a few possible lengths of all calls that stand for what is not known. No I/O.

The lengths of unknown calls differ by orders of magnitude, so a decision for one estimate is wrong
for most of what may be true. Policies therefore weigh each decision in several outlooks: in each
one the lengths are a low, a middle or a high quantile of the beliefs about them. The mean of the
logarithm of time and cost over the outlooks is least where the expected regret is least, since the
value of the best decision in hindsight does not depend on the decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scalable.scaling.beliefs import Beliefs
from scalable.scaling.readiness import GraphView
from scalable.scaling.task_model import Kind, TaskModel

#: Largest spread of the beliefs with which lengths count as known.
KNOWN_SPREAD = 0.15
#: Quantiles, in standard deviations, and their weights.
QUANTILES = ((-1.5, 0.2), (0.0, 0.6), (1.5, 0.2))


class Lengths:
    """Lengths of calls in one outlook.

    Parameters
    ----------
    beliefs
        Beliefs about the lengths.
    deviation
        Quantile of the beliefs, in standard deviations.
    """

    def __init__(self, beliefs: Beliefs, deviation: float) -> None:
        self._beliefs = beliefs
        self._deviation = deviation
        self._means: dict[Kind, float] = {}

    def mean_s(self, kind: Kind) -> float:
        """Return the mean running time of a kind's calls in seconds."""
        mean = self._means.get(kind)
        if mean is None:
            belief = self._beliefs.of(kind)
            mean = math.exp(belief.log_s + self._deviation * belief.spread)
            self._means[kind] = mean
        return mean

    def residual_s(self, kind: Kind, elapsed_s: float) -> float:
        """Return the expected remaining seconds of a call that has run for some seconds."""
        return self._beliefs.model.residual_with(self.mean_s(kind), kind, elapsed_s)

    def doubt(self, kind: Kind) -> float:
        """Return the spread of the belief about a kind's length."""
        return self._beliefs.of(kind).spread


class Outlook(NamedTuple):
    """One outlook on the calls of a pool.

    The fields are its weight (all weights together are 1), the lengths of calls, and the calls that
    wait for other calls: tuples of the expected seconds until they are ready, their kind and their
    number, the soonest first.
    """

    weight: float
    lengths: Lengths
    coming: Sequence[tuple[float, Kind, int]] = ()


def outlooks_on(graph: GraphView[Any], model: TaskModel, startup_s: float) -> list[Outlook]:
    """Return the outlooks on the calls of a graph, without coming calls.

    Parameters
    ----------
    graph
        Calls that have not ended.
    model
        Measured and expected lengths.
    startup_s
        Seconds that the start of a worker takes.
    """
    elapsed: dict[Kind, list[float]] = {}
    for kind, seconds in graph.running.values():
        elapsed.setdefault(kind, []).append(seconds)
    unfinished = Counter(graph.queued.values())
    unfinished.update(kind for kind, _ in graph.blocked.values())
    unfinished.update({kind: len(seconds) for kind, seconds in elapsed.items()})
    return outlooks(Beliefs(model, elapsed, startup_s, unfinished), unfinished)


def likeliest(found: Iterable[Outlook]) -> Outlook:
    """Return the outlook with the largest weight."""
    return max(found, key=lambda outlook: outlook.weight)


def outlooks(beliefs: Beliefs, kinds: Iterable[Kind]) -> list[Outlook]:
    """Return the outlooks, without coming calls; a single one if all these kinds are known.

    Parameters
    ----------
    beliefs
        Beliefs about the lengths of calls.
    kinds
        Kinds of the calls that have not ended.
    """
    if max((beliefs.of(kind).spread for kind in kinds), default=0.0) < KNOWN_SPREAD:
        return [Outlook(1.0, Lengths(beliefs, 0.0))]
    return [Outlook(weight, Lengths(beliefs, deviation)) for deviation, weight in QUANTILES]
