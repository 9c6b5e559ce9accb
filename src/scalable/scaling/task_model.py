"""Model of the running time and memory of calls, learned from ended and running calls. No I/O.

The kind of a call is its component, its task name and the size of its input. If few calls of a kind
were measured, the estimate is combined with the estimate of the level above: size -> task ->
component. Earlier runs and the manifest contribute to the estimate of a task.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from scalable.quantiles import quantile
from scalable.spec import Forecast, ForecastSource

#: Assumed running time of a call in seconds if nothing is known.
UNKNOWN_DURATION_S = 10.0
#: Maximum number of calls of this run that all earlier runs together weigh as much as.
LARGEST_HISTORY_WEIGHT = 20
#: Minimum number of samples for sample quantiles. With fewer samples, quantiles are computed from a
#: lognormal distribution.
ENOUGH_SAMPLES = 20
#: Minimum standard deviation of the logarithms of running times, because a few similar samples do
#: not prove a small spread; and the assumed one with fewer than three samples.
LEAST_SPREAD, SPREAD_OF_FEW = 0.3, 0.4
#: Assumed standard deviation of the logarithms of running times if no call was measured.
ASSUMED_SPREAD = 1.0
#: Length in seconds below which the tasks of a component do not differ: others cost more.
SHORTEST_S = 0.01
#: Minimum number of longer calls from which the rest of a running call is computed.
ENOUGH_LONGER = 5
#: Number of the latest running times that are kept for each kind.
KEPT_SAMPLES = 1000


class Kind(NamedTuple):
    """Kind of a call: component, task and :func:`size_bucket` of its input (None for any size)."""

    component: str
    task: str = ""
    bucket: int | None = None


class Sample(NamedTuple):
    """Measurement of an ended call: its kind, seconds, and peak memory in bytes."""

    kind: Kind
    duration_s: float
    memory: int | None = None


class Expectation(NamedTuple):
    """Manifest's values for a call of a task: seconds and bytes, each None if not given."""

    duration_s: float | None = None
    memory: int | None = None


def size_bucket(nbytes: float | None) -> int | None:
    """Return a number for the size of an input; sizes with one number differ less than fourfold.

    Parameters
    ----------
    nbytes
        Size in bytes, or None if it is not known. The result is then None, whereas an empty input
        gives 0.
    """
    return None if nbytes is None else int(nbytes).bit_length() // 2


@dataclass(frozen=True)
class Prior:
    """Assumptions about the lengths of calls of which nothing is known.

    All spreads are standard deviations of logarithms.

    Attributes
    ----------
    single_s
        Median length in seconds of tasks with one call, for a start-up time of one second.
    growth
        Exponent with which the median length grows with the start-up time of workers.
    parallel
        Exponent with which the median length of a task grows with the number of its calls. Work is
        divided into many calls because it is long; tasks with one call prepare or collect. In
        fifteen traces of WfInstances a regression gives 0.60; without one of their families each,
        it is between 0.45 and 0.79.
    pool_spread
        Spread of the median length of a pool's tasks.
    task_spread
        Spread between the tasks of one pool. It counts as much as two measured tasks.
    call_spread
        Spread between the calls of one task.
    stated_spread
        Error of a length that the manifest gives.
    size_spread
        Spread between the inputs' sizes of one task.
    """

    single_s: float = 10.0
    growth: float = 0.2
    parallel: float = 0.4
    pool_spread: float = 1.5
    task_spread: float = 1.5
    call_spread: float = 0.7
    stated_spread: float = 0.3
    size_spread: float = 0.5


class Measured(NamedTuple):
    """Number of measured calls, and their mean running time in seconds."""

    calls: int
    mean_s: float


class Tasks(NamedTuple):
    """Measured tasks of a component: their number, and the sum of the logarithms of their means."""

    tasks: int
    log_s: float


@dataclass
class _Record:
    """Measured calls of one kind, from earlier runs and from this run."""

    earlier: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    #: Number and total seconds of all calls of this run, also of calls that ``ended`` has dropped.
    count: int = 0
    total_s: float = 0.0
    #: Running times in ascending order, and sums of the longest 1, 2, ...; made when needed.
    _longest: tuple[list[float], list[float]] | None = None

    def add(self, sample: Sample, *, earlier: bool) -> None:
        kept = self.earlier if earlier else self.ended
        self._longest = None
        kept.append(sample.duration_s)
        del kept[:-KEPT_SAMPLES]
        if not earlier:
            self.count += 1
            self.total_s += sample.duration_s
        if sample.memory is not None:
            self.memory.append(sample.memory)
            del self.memory[:-KEPT_SAMPLES]

    @property
    def durations(self) -> list[float]:
        return self.earlier + self.ended

    @property
    def mean_s(self) -> float:
        """Mean of all measured running times in seconds."""
        return (self.total_s + sum(self.earlier)) / (self.count + len(self.earlier))

    def beyond_s(self, elapsed_s: float) -> float | None:
        """Return the mean seconds that longer calls ran beyond a time; None for too few."""
        if self._longest is None:
            ordered = sorted(self.durations)
            sums = [*accumulate(reversed(ordered))]
            self._longest = ordered, sums
        ordered, sums = self._longest
        longer = len(ordered) - bisect_right(ordered, elapsed_s)
        return sums[longer - 1] / longer - elapsed_s if longer >= ENOUGH_LONGER else None


#: Largest number of tasks and sizes that are told apart; later ones only count for their component.
#: A program may give each of a million calls a name of its own.
MOST_KINDS = 10_000


class TaskModel:
    """Prediction of the running times and peak memory of calls.

    Parameters
    ----------
    expectations
        (component, task) -> values that the manifest gives for one call.
    history
        Calls of earlier runs; the caller should leave out failed calls.
    unknown_s
        Assumed running time of a call in seconds if nothing is known.
    """

    def __init__(
        self,
        expectations: Mapping[tuple[str, str], Expectation] | None = None,
        history: Iterable[Sample] = (),
        unknown_s: float = UNKNOWN_DURATION_S,
    ) -> None:
        self.unknown_s = unknown_s
        self.prior = Prior()
        self._tasks: dict[str, Tasks] = {}
        #: Component -> task -> logarithm of its mean length.
        self._log_means: dict[str, dict[Kind, float]] = {}
        self._expectations = dict(expectations or {})
        self._records: dict[Kind, _Record] = {}
        for sample in history:
            self._add(sample, earlier=True)

    def observe(self, sample: Sample) -> None:
        """Learn from an ended call of this run; an invalid running time is ignored."""
        self._add(sample, earlier=False)

    def _add(self, sample: Sample, *, earlier: bool) -> None:
        if not (math.isfinite(sample.duration_s) and sample.duration_s >= 0):
            return
        full = len(self._records) >= MOST_KINDS
        for kind in dict.fromkeys(_levels(sample.kind)):
            if full and kind.task and kind not in self._records:
                continue
            record = self._records.setdefault(kind, _Record())
            record.add(sample, earlier=earlier)
            if kind.task and kind.bucket is None:
                self._sum_up(kind, record)

    def _sum_up(self, kind: Kind, record: _Record) -> None:
        """Keep the sum over a component's tasks up to date."""
        known, total = self.tasks(kind.component)
        logs = self._log_means.setdefault(kind.component, {})
        old = logs.get(kind)
        new = logs[kind] = math.log(max(record.mean_s, SHORTEST_S))
        if old is not None:
            known, total = known - 1, total - old
        self._tasks[kind.component] = Tasks(known + 1, total + new)

    def mean_s(self, kind: Kind, running: Sequence[float] = ()) -> float:
        """Return the mean running time of a kind's calls in seconds, including running calls.

        The estimate is the total time that ended and running calls have run, divided by the number
        of ended calls. It estimates the mean of an exponential distribution under censoring
        (Epstein and Sobel 1953). The estimate before this run is included with its own weight.

        Parameters
        ----------
        kind
            Kind of the calls.
        running
            Seconds that each running call of this kind has run until now.
        """
        mean, weight = self._prior(kind)
        record = self._records.get(kind, _Record())
        return (weight * mean + record.total_s + sum(running)) / (weight + record.count)

    def knows(self, kind: Kind) -> bool:
        """Return whether the manifest or measured calls give the running time of a kind's task."""
        expected = self._expectations.get((kind.component, kind.task), Expectation())
        return expected.duration_s is not None or Kind(kind.component, kind.task) in self._records

    def _prior(self, kind: Kind) -> tuple[float, float]:
        """Return the estimate before this run, and its weight as a number of calls."""
        record = self._records.get(kind)
        above = self._above(kind)
        if record is None or not record.earlier:
            return above, 1.0
        count = len(record.earlier)
        mean = (above + sum(record.earlier)) / (1 + count)
        return mean, float(min(count, LARGEST_HISTORY_WEIGHT))

    def _above(self, kind: Kind) -> float:
        """Return the mean running time at the level above a kind, in seconds."""
        if kind.bucket is not None:
            return self.mean_s(Kind(kind.component, kind.task))
        if kind.task:
            expected = self._expectations.get((kind.component, kind.task), Expectation())
            if expected.duration_s is not None:
                return expected.duration_s
            return self._usual_s(kind.component)
        hints = [e.duration_s for (c, _), e in self._expectations.items() if c == kind.component]
        known = [hint for hint in hints if hint is not None]
        return fmean(known) if known else self.unknown_s

    def _usual_s(self, component: str) -> float:
        """Return the assumed running time, in seconds, of a task that nothing is known about.

        The result is the geometric mean of the component's measured tasks and ``unknown_s``.
        Running times differ by orders of magnitude, so one long task should not dominate the mean.
        """
        tasks = self.tasks(component)
        if not tasks.tasks:
            return self.unknown_s
        return math.exp((tasks.log_s + math.log(self.unknown_s)) / (tasks.tasks + 1))

    def residual_s(self, kind: Kind, elapsed_s: float) -> float:
        """Return the expected remaining running time of a call in seconds.

        Parameters
        ----------
        kind
            Kind of the call.
        elapsed_s
            Seconds that the call has run until now.
        """
        return self.residual_with(self.mean_s(kind), kind, elapsed_s)

    def residual_with(self, mean_s: float, kind: Kind, elapsed_s: float) -> float:
        """Return the expected remaining running time of a call, given the mean of its kind."""
        record = self._records.get(kind)
        beyond = None if record is None else record.beyond_s(elapsed_s)
        if beyond is not None:
            return beyond
        return max(mean_s - elapsed_s, 0.3 * mean_s, 0.5 * elapsed_s if elapsed_s > mean_s else 0.0)

    def measured(self, kind: Kind) -> tuple[Measured, Measured]:
        """Return the measured calls of a kind: in earlier runs, and in this run."""
        record = self._records.get(kind)
        if record is None:
            return Measured(0, 0.0), Measured(0, 0.0)
        earlier, ended = len(record.earlier), record.count
        return (
            Measured(earlier, sum(record.earlier) / max(1, earlier)),
            Measured(ended, record.total_s / max(1, ended)),
        )

    def stated_s(self, kind: Kind) -> float | None:
        """Return the seconds that the manifest gives for a call of a kind's task, or None."""
        return self._expectations.get((kind.component, kind.task), Expectation()).duration_s

    def tasks(self, component: str) -> Tasks:
        """Return the number and the lengths of the measured tasks of a component."""
        return self._tasks.get(component, Tasks(0, 0.0))

    def log_means(self, component: str) -> Mapping[Kind, float]:
        """Return the logarithm of the mean length in seconds of each measured task."""
        return self._log_means.get(component, {})

    def forecast(self, kind: Kind) -> Forecast:
        """Return the forecast for a call of this kind; see :class:`scalable.spec.Forecast`."""
        expected = self._expectations.get((kind.component, kind.task), Expectation())
        record = self._best_record(kind)
        durations = [] if record is None else record.durations
        memory = _memory_quantile(record, expected)
        if not durations:
            if expected.duration_s is not None:
                return Forecast.exactly(expected.duration_s, memory)
            lengths = _lognormal(self.mean_s(kind), ASSUMED_SPREAD, 1)
            return Forecast(*lengths, memory=memory)
        source: ForecastSource = "history"
        return Forecast(
            *_spread(durations),
            memory=memory,
            samples=len(durations),
            source=source,
            durations_s=tuple(durations),
        )

    def _best_record(self, kind: Kind) -> _Record | None:
        """Return the record of the size if it has at least three samples, else that of the task.

        The component's other tasks are used only if no call of the task was measured, and the
        manifest does not describe the task: tasks of one component may differ a thousandfold.
        """
        size, task, component = (self._records.get(level) for level in _levels(kind))
        if size is not None and len(size.durations) >= 3:
            return size
        if task is not None or (kind.component, kind.task) in self._expectations:
            return task
        return component


def _levels(kind: Kind) -> tuple[Kind, ...]:
    """Return a kind, its task (any size) and its component (any task)."""
    return (kind, Kind(kind.component, kind.task), Kind(kind.component))


def _spread(durations: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the mean and the quantiles (0.5, 0.8, 0.95) of running times in seconds."""
    ordered = sorted(durations)
    count = len(ordered)
    if count >= ENOUGH_SAMPLES:
        return (fmean(ordered), *(quantile(ordered, q) for q in (0.5, 0.8, 0.95)))  # type: ignore[return-value]
    logs = [math.log(max(d, 1e-6)) for d in ordered]
    spread = max(LEAST_SPREAD, stdev(logs)) if count >= 3 else SPREAD_OF_FEW
    _, *quantiles = _lognormal(math.exp(fmean(logs)), spread, count)
    return (fmean(ordered), *quantiles)  # type: ignore[return-value]


def _lognormal(median: float, spread: float, count: int) -> tuple[float, float, float, float]:
    """Return mean (taken to be the median), median, 0.8 and 0.95 quantile of the next sample."""
    widened = spread * math.sqrt(1 + 1 / count)
    q80, q95 = (median * math.exp(NormalDist().inv_cdf(q) * widened) for q in (0.8, 0.95))
    return median, median, q80, q95


def _memory_quantile(record: _Record | None, expected: Expectation) -> int | None:
    if record is None or not record.memory:
        return expected.memory
    return int(quantile(sorted(record.memory), 0.95))
