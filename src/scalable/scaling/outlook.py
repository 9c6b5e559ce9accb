"""Outlooks: a few possible durations of all tasks while they are unknown. This module does no I/O.

Policies minimize the mean logarithm of time and cost over the outlooks. This also minimizes the
expected regret, since the best value in hindsight does not depend on the decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scalable.scaling.beliefs import Beliefs
from scalable.scaling.readiness import GraphView
from scalable.scaling.task_model import Kind, TaskModel

#: Largest spread of a belief with which a duration counts as known.
KNOWN_SPREAD = 0.15
#: Quantiles, in standard deviations, and their weights.
QUANTILES = ((-1.5, 0.2), (0.0, 0.6), (1.5, 0.2))


class QuantileDurations:
    """Task durations at one quantile of the beliefs. The quantile is in standard deviations."""

    def __init__(self, beliefs: Beliefs, deviation: float) -> None:
        self._beliefs = beliefs
        self._deviation = deviation
        self._means: dict[Kind, float] = {}

    def mean_s(self, kind: Kind) -> float:
        mean = self._means.get(kind)
        if mean is None:
            belief = self._beliefs.of(kind)
            mean = math.exp(belief.log_s + self._deviation * belief.spread)
            self._means[kind] = mean
        return mean

    def residual_s(self, kind: Kind, elapsed_s: float) -> float:
        return self._beliefs.model.residual_with(self.mean_s(kind), kind, elapsed_s)

    def doubt(self, kind: Kind) -> float:
        return self._beliefs.of(kind).spread


class Outlook(NamedTuple):
    """Possible durations of a pool's tasks, with a weight."""

    #: All weights sum to 1.
    weight: float
    lengths: QuantileDurations
    #: Seconds until blocked tasks are ready, their kind and number, the soonest first.
    coming: Sequence[tuple[float, Kind, int]] = ()


def outlooks_on(graph: GraphView[Any], model: TaskModel, startup_s: float) -> list[Outlook]:
    """Return the outlooks on a graph's unfinished tasks, with an empty ``coming``."""
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
    """Return the outlooks with an empty ``coming``. There is one if all kinds are known."""
    if max((beliefs.of(kind).spread for kind in kinds), default=0.0) < KNOWN_SPREAD:
        return [Outlook(1.0, QuantileDurations(beliefs, 0.0))]
    return [
        Outlook(weight, QuantileDurations(beliefs, deviation)) for deviation, weight in QUANTILES
    ]
