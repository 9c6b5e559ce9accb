"""Model of task durations and memory, from finished and running tasks. This module does no I/O."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from scalable.model import Forecast, ForecastSource
from scalable.quantiles import quantile

#: Assumed duration of a task in seconds if nothing is known.
UNKNOWN_DURATION_S = 10.0
#: Maximum weight of all earlier runs together, as a number of tasks of this run.
LARGEST_HISTORY_WEIGHT = 20
#: Minimum number of samples for sample quantiles. With fewer samples, quantiles are computed from a
#: lognormal distribution.
ENOUGH_SAMPLES = 20
#: Minimum standard deviation of the logarithms of durations, because a few similar samples do not
#: prove a small spread. The second number is assumed with fewer than three samples.
LEAST_SPREAD, SPREAD_OF_FEW = 0.3, 0.4
#: Assumed standard deviation of the logarithms of durations if no task was measured.
ASSUMED_SPREAD = 1.0
#: Least mean duration in seconds that counts for a component's names: other costs are larger.
SHORTEST_S = 0.01
#: Minimum number of longer tasks from which the rest of a running task is computed.
ENOUGH_LONGER = 5
#: Number of the latest durations that are kept for each kind.
KEPT_SAMPLES = 1000


class Kind(NamedTuple):
    """Kind of a task: component, name and input :func:`size_bucket` (None for any size)."""

    component: str
    task: str = ""
    bucket: int | None = None


class Sample(NamedTuple):
    """Measurement of a finished task: its kind, seconds, and peak memory in bytes."""

    kind: Kind
    duration_s: float
    memory: int | None = None


class Expectation(NamedTuple):
    """Values in the manifest for one task: seconds and bytes, each None if not given."""

    duration_s: float | None = None
    memory: int | None = None


def size_bucket(nbytes: float | None) -> int | None:
    """Return the bucket (a factor of four) of an input size, or None if it is unknown."""
    return None if nbytes is None else int(nbytes).bit_length() // 2


@dataclass(frozen=True)
class Prior:
    """Assumptions about unknown durations. All spreads are standard deviations of logarithms."""

    #: Median duration of names with one task, for a start-up time of one second.
    single_s: float = 10.0
    #: Exponent with which the median duration grows with the start-up time of workers.
    growth: float = 0.2
    #: Exponent with which the median duration of a name grows with the number of its tasks. Work is
    #: divided into many tasks because it is long. Names with one task prepare or collect. A
    #: regression over fifteen traces of WfInstances gives 0.60, and 0.45 to 0.79 without one of
    #: their families each.
    parallel: float = 0.4
    #: Spread of the median durations of different pools' names.
    pool_spread: float = 1.5
    #: Spread of the durations of one pool's names. It counts as much as two measured names.
    task_spread: float = 1.5
    #: Spread of the durations of one name's tasks.
    call_spread: float = 0.7
    #: Error of a duration that the manifest gives.
    stated_spread: float = 0.3
    #: Spread of one name's durations over its input sizes.
    size_spread: float = 0.5


class MeasuredMean(NamedTuple):
    """Number of measured tasks, and their mean duration in seconds."""

    calls: int
    mean_s: float


class Tasks(NamedTuple):
    """Number of a component's measured names, and the sum of the logarithms of their means."""

    tasks: int
    log_s: float


@dataclass
class _Record:
    earlier: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    #: Number and total seconds of all tasks of this run, including those that ``ended`` has
    #: dropped.
    count: int = 0
    total_s: float = 0.0
    #: Ascending durations, and sums of the longest 1, 2, ... of them, made when needed.
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
        return (self.total_s + sum(self.earlier)) / (self.count + len(self.earlier))

    def beyond_s(self, elapsed_s: float) -> float | None:
        """Return the mean excess of longer tasks over ``elapsed_s``, or None for too few tasks."""
        if self._longest is None:
            ordered = sorted(self.durations)
            sums = [*accumulate(reversed(ordered))]
            self._longest = ordered, sums
        ordered, sums = self._longest
        longer = len(ordered) - bisect_right(ordered, elapsed_s)
        return sums[longer - 1] / longer - elapsed_s if longer >= ENOUGH_LONGER else None


#: Maximum number of distinguished names and sizes. Later ones only count for their component. A
#: program may give each of a million tasks its own name.
MOST_KINDS = 10_000


class TaskModel:
    """Prediction of the durations and peak memory of tasks.
    An estimate from few tasks is combined with the next more general one (size, name, component).
    ``history`` should not contain failed tasks.
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
        #: Logarithm of the mean duration of each task name, by component.
        self._log_means: dict[str, dict[Kind, float]] = {}
        self._expectations = dict(expectations or {})
        self._records: dict[Kind, _Record] = {}
        for sample in history:
            self._add(sample, earlier=True)

    def observe(self, sample: Sample) -> None:
        """Add a finished task of this run, unless its duration is invalid."""
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
        """Update the sum over a component's task names."""
        known, total = self.tasks(kind.component)
        logs = self._log_means.setdefault(kind.component, {})
        old = logs.get(kind)
        new = logs[kind] = math.log(max(record.mean_s, SHORTEST_S))
        if old is not None:
            known, total = known - 1, total - old
        self._tasks[kind.component] = Tasks(known + 1, total + new)

    def mean_s(self, kind: Kind, running: Sequence[float] = ()) -> float:
        """Return the mean duration of a kind's tasks, including the ``running`` ones so far."""
        # The time of finished and running tasks / the number of finished tasks estimates the mean
        # of an exponential distribution under censoring (Epstein and Sobel 1953).
        mean, weight = self._prior(kind)
        record = self._records.get(kind, _Record())
        return (weight * mean + record.total_s + sum(running)) / (weight + record.count)

    def knows(self, kind: Kind) -> bool:
        """Return whether the manifest or measured tasks give the duration of a kind's name."""
        expected = self._expectations.get((kind.component, kind.task), Expectation())
        return expected.duration_s is not None or Kind(kind.component, kind.task) in self._records

    def _prior(self, kind: Kind) -> tuple[float, float]:
        """Return the estimate before this run, and its weight as a number of tasks."""
        record = self._records.get(kind)
        above = self._above(kind)
        if record is None or not record.earlier:
            return above, 1.0
        count = len(record.earlier)
        mean = (above + sum(record.earlier)) / (1 + count)
        return mean, float(min(count, LARGEST_HISTORY_WEIGHT))

    def _above(self, kind: Kind) -> float:
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
        """Return the assumed duration in seconds of an unmeasured task name."""
        # Durations differ by orders of magnitude, so a geometric mean is not dominated by one long
        # task.
        tasks = self.tasks(component)
        if not tasks.tasks:
            return self.unknown_s
        return math.exp((tasks.log_s + math.log(self.unknown_s)) / (tasks.tasks + 1))

    def residual_s(self, kind: Kind, elapsed_s: float) -> float:
        return self.residual_with(self.mean_s(kind), kind, elapsed_s)

    def residual_with(self, mean_s: float, kind: Kind, elapsed_s: float) -> float:
        """Return the expected remaining duration, given the mean of the kind."""
        record = self._records.get(kind)
        beyond = None if record is None else record.beyond_s(elapsed_s)
        if beyond is not None:
            return beyond
        return max(mean_s - elapsed_s, 0.3 * mean_s, 0.5 * elapsed_s if elapsed_s > mean_s else 0.0)

    def measured(self, kind: Kind) -> tuple[MeasuredMean, MeasuredMean]:
        """Return the measured mean of a kind in earlier runs, and that in this run."""
        record = self._records.get(kind)
        if record is None:
            return MeasuredMean(0, 0.0), MeasuredMean(0, 0.0)
        earlier, ended = len(record.earlier), record.count
        return (
            MeasuredMean(earlier, sum(record.earlier) / max(1, earlier)),
            MeasuredMean(ended, record.total_s / max(1, ended)),
        )

    def stated_s(self, kind: Kind) -> float | None:
        return self._expectations.get((kind.component, kind.task), Expectation()).duration_s

    def tasks(self, component: str) -> Tasks:
        return self._tasks.get(component, Tasks(0, 0.0))

    def log_means(self, component: str) -> Mapping[Kind, float]:
        """Map each measured name to the logarithm of its mean duration."""
        return self._log_means.get(component, {})

    def forecast(self, kind: Kind) -> Forecast:
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
        """Return the record of the size if it has three samples, else of the name or component."""
        # The component's other names are used only if the manifest does not describe the name and
        # no task of it was measured, because the names of one component may differ a thousandfold.
        size, task, component = (self._records.get(level) for level in _levels(kind))
        if size is not None and len(size.durations) >= 3:
            return size
        if task is not None or (kind.component, kind.task) in self._expectations:
            return task
        return component


def _levels(kind: Kind) -> tuple[Kind, ...]:
    """Return a kind, its name (any size) and its component (any name)."""
    return (kind, Kind(kind.component, kind.task), Kind(kind.component))


def _spread(durations: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the mean and the quantiles (0.5, 0.8, 0.95) of durations."""
    ordered = sorted(durations)
    count = len(ordered)
    if count >= ENOUGH_SAMPLES:
        return (fmean(ordered), *(quantile(ordered, q) for q in (0.5, 0.8, 0.95)))  # type: ignore[return-value]
    logs = [math.log(max(d, 1e-6)) for d in ordered]
    spread = max(LEAST_SPREAD, stdev(logs)) if count >= 3 else SPREAD_OF_FEW
    _, *quantiles = _lognormal(math.exp(fmean(logs)), spread, count)
    return (fmean(ordered), *quantiles)  # type: ignore[return-value]


def _lognormal(median: float, spread: float, count: int) -> tuple[float, float, float, float]:
    """Return mean (assumed equal to the median), median, 0.8 and 0.95 quantiles of a new sample."""
    widened = spread * math.sqrt(1 + 1 / count)
    q80, q95 = (median * math.exp(NormalDist().inv_cdf(q) * widened) for q in (0.8, 0.95))
    return median, median, q80, q95


def _memory_quantile(record: _Record | None, expected: Expectation) -> int | None:
    if record is None or not record.memory:
        return expected.memory
    return int(quantile(sorted(record.memory), 0.95))
