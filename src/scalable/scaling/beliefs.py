"""Beliefs about task durations before enough measurements exist. This module does no I/O.

Logarithms of estimates are combined, weighted by their precision, as in the normal model with known
variances (Gelman et al., Bayesian Data Analysis, section 2.5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from scalable.scaling.task_model import Kind, MeasuredMean, TaskModel

#: Assumed ratio of the standard deviation of a kind's durations to their mean.
VARIATION = 0.8
#: Least errors of the logarithm of a mean duration: measured in this run, and in earlier runs.
LEAST_ERROR, LEAST_ERROR_OF_RUNS = 0.05, 0.2
#: Least duration in seconds for which a logarithm is taken.
_LEAST_S = 1e-3
#: Points of a belief, in standard deviations, at which running tasks are evaluated.
_POINTS = tuple(-2.5 + 0.5 * i for i in range(12))
#: Maximum number of groups into which the running tasks of a kind are merged.
_GROUPS = 8


class Belief(NamedTuple):
    """Lognormal distribution of a mean duration: logarithm of its median in seconds, and spread."""

    log_s: float
    spread: float

    def combined(self, log_s: float, spread: float) -> Belief:
        own, other = self.spread**-2, spread**-2
        return Belief((own * self.log_s + other * log_s) / (own + other), (own + other) ** -0.5)

    def survived(self, elapsed_s: Sequence[float], call_spread: float) -> Belief:
        """Return this belief, updated by tasks that have run for some time without finishing."""
        # The result has the mean and the variance of the updated distribution at a few points.
        ordered = sorted(elapsed_s)
        size = -(-len(ordered) // _GROUPS)
        groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
        pairs = [(math.log(sum(g) / len(g) + 1e-6), len(g)) for g in groups]
        places = [self.log_s + self.spread * point for point in _POINTS]
        logs = []
        for place, point in zip(places, _POINTS, strict=True):
            weight = -point * point / 2
            for log_elapsed, calls in pairs:
                # The median of a lognormal duration is exp(-spread^2 / 2) times its mean.
                beyond = (log_elapsed - place + call_spread**2 / 2) / (call_spread * math.sqrt(2))
                weight += calls * math.log(max(0.5 * math.erfc(beyond), 1e-300))
            logs.append(weight)
        top = max(logs)
        weights = [math.exp(weight - top) for weight in logs]
        total = sum(weights)
        mean = sum(p * w for p, w in zip(places, weights, strict=True)) / total
        variance = sum((p - mean) ** 2 * w for p, w in zip(places, weights, strict=True)) / total
        return Belief(mean, max(math.sqrt(variance), 0.1 * self.spread))


class Beliefs:
    """Beliefs about all kinds of tasks at one moment.
    The measured kinds of a pool shift and narrow the wide prior of unknown kinds. So does the
    start-up time of workers, since tasks are usually not much shorter than that.
    """

    def __init__(
        self,
        model: TaskModel,
        running: Mapping[Kind, Sequence[float]],
        startup_s: float,
        unfinished: Mapping[Kind, int] | None = None,
    ) -> None:
        self.model = model
        self.prior = model.prior
        self._running = running
        self._startup_s = startup_s
        #: Number of unfinished tasks of each task name.
        self._unfinished = Counter[Kind]()
        for kind, count in (unfinished or {}).items():
            self._unfinished[_task(kind)] += count
        self._of: dict[Kind, Belief] = {}
        self._pools: dict[str, Belief] = {}

    def of(self, kind: Kind) -> Belief:
        belief = self._of.get(kind)
        if belief is None:
            belief = self._of[kind] = self._made(kind)
        return belief

    def _made(self, kind: Kind) -> Belief:
        prior = self.prior
        belief = self._above(kind)
        earlier, ended = self.model.measured(kind)
        if earlier.calls:
            # Another run differs from this one, however many of its tasks were measured.
            belief = belief.combined(
                _log(earlier.mean_s), math.hypot(self._error(earlier), LEAST_ERROR_OF_RUNS)
            )
        if ended.calls:
            belief = belief.combined(_log(ended.mean_s), max(self._error(ended), LEAST_ERROR))
        elapsed = self._running.get(kind)
        if elapsed:
            telling = belief.log_s - 2.5 * math.hypot(belief.spread, prior.call_spread)
            if _log(max(elapsed)) > telling:
                belief = belief.survived(elapsed, prior.call_spread)
        return belief

    @staticmethod
    def _error(measured: MeasuredMean) -> float:
        return VARIATION / math.sqrt(measured.calls)

    def _above(self, kind: Kind) -> Belief:
        """Return the next more general belief: that of the task name, the manifest, or the pool."""
        if kind.bucket is not None:
            task = self.of(Kind(kind.component, kind.task))
            return Belief(task.log_s, math.hypot(task.spread, self.prior.size_spread))
        stated = self.model.stated_s(kind)
        if stated is not None:
            return Belief(_log(stated), self.prior.stated_spread)
        pool = self._pools.get(kind.component)
        if pool is None:
            pool = self._pools[kind.component] = self._pool(kind.component)
        return Belief(pool.log_s + self._parallel(kind), pool.spread)

    def _parallel(self, kind: Kind) -> float:
        """Return the growth of a duration's logarithm with the number of tasks of its name."""
        _, ended = self.model.measured(_task(kind))
        return self.prior.parallel * math.log(max(1, self._unfinished[_task(kind)] + ended.calls))

    def _pool(self, component: str) -> Belief:
        """Return the belief about an unknown task name in a pool if it has a single task."""
        prior = self.prior
        growth = prior.growth * math.log(max(self._startup_s, _LEAST_S))
        usual = math.log(prior.single_s) + growth
        means = self.model.log_means(component)
        logs = [log_s - self._parallel(kind) for kind, log_s in means.items()]
        for kind, elapsed in self._running.items():
            if kind.component == component and elapsed and not self.model.knows(kind):
                log_s = _log(max(elapsed)) - self._parallel(kind)
                if log_s > usual:  # an unknown task that runs this long is itself a measurement
                    logs.append(log_s)
        if not logs:
            return Belief(usual, math.hypot(prior.pool_spread, prior.task_spread))
        count, mean = len(logs), fmean(logs)
        deviation = sum((log_s - mean) ** 2 for log_s in logs)
        variance = (2 * prior.task_spread**2 + deviation) / (1 + count)
        pool = Belief(usual, prior.pool_spread).combined(mean, math.sqrt(variance / count))
        return Belief(pool.log_s, math.sqrt(variance + pool.spread**2))


def _task(kind: Kind) -> Kind:
    return Kind(kind.component, kind.task)


def _log(seconds: float) -> float:
    return math.log(max(seconds, _LEAST_S))
