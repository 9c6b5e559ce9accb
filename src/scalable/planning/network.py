"""Estimate of the time that a graph of tasks takes on given worker counts. Does no I/O.

A run takes as long as its longest chain of stages, but at least any pool's work divided by its
slots.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from statistics import NormalDist

from scalable.model import Forecast
from scalable.planning.work import ExpectedTasks

#: Minimum share of a stage's tasks that may exceed the assumed longest duration.
_BEYOND_LONGEST = 0.002
#: Maximum duration of a stage's tail (see ``tail_s``), as a share of the longest task.
_TAIL = 0.7
#: Standard normal quantiles of 0.8 and 0.95, to fit a lognormal distribution to durations.
_Z80 = NormalDist().inv_cdf(0.8)
_Z95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class ReadyStage:
    """Tasks of one pool that become ready together, since they wait for the same names."""

    #: Position of the pool in :attr:`Network.tags`.
    pool: int
    #: Names of the tasks.
    tasks: tuple[str, ...]
    #: Number of tasks.
    calls: int
    #: Sum of the durations of all tasks.
    work_s: float
    #: Duration of the longest task.
    longest_s: float
    #: Seconds in which the last tasks run while other slots are idle.
    tail_s: float
    #: True if all tasks take equally long.
    even: bool
    #: Positions of the stages that must finish first, all before the stage's own position.
    before: tuple[int, ...] = ()

    def time_s(self, slots: int) -> float:
        """Return the seconds from the start of the first task to the end of the last task."""
        if not self.calls:
            return 0.0
        # Equal tasks run in waves of one task per slot. Otherwise, this is the expected duration of
        # a list schedule.
        if self.even:
            return math.ceil(self.calls / slots) * self.work_s / self.calls
        return max(self.work_s / slots + self.tail_s * (1 - 1 / slots), self.longest_s)


@dataclass
class Network:
    """Stages, and the pools that run them."""

    tags: Sequence[str]
    #: Slots of one worker of each pool.
    slots: Sequence[int]
    #: Seconds until the workers of each pool have connected.
    startup_s: Sequence[float]
    #: Stages. Each comes after the stages that it waits for.
    stages: Sequence[ReadyStage]
    stages_of: list[list[int]] = field(init=False)
    _starts: list[tuple[float, tuple[int, ...]]] = field(init=False, repr=False)
    _shared: list[tuple[int, list[int], float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.stages_of = [[] for _ in self.tags]
        for position, stage in enumerate(self.stages):
            self.stages_of[stage.pool].append(position)
        self._starts = [(self.startup_s[s.pool] if s.calls else 0.0, s.before) for s in self.stages]
        self._shared = [
            (pool, own, sum(self.stages[i].work_s for i in own) / self.slots[pool])
            for pool, own in enumerate(self.stages_of)
            if len(own) > 1
        ]

    def finish_s(self, workers: Sequence[int]) -> float:
        """Return the seconds until all tasks have finished, or inf if a used pool has no worker."""
        return self.compose(workers, self.times_s(workers))[0]

    def times_s(self, workers: Sequence[int]) -> list[float]:
        """Return each stage's seconds if its pool runs nothing else, or inf without workers."""
        return [self.stage_s(stage, workers[stage.pool]) for stage in self.stages]

    def stage_s(self, stage: ReadyStage, count: int) -> float:
        if stage.calls and not count:
            return math.inf
        return stage.time_s(count * self.slots[stage.pool])

    def compose(
        self, workers: Sequence[int], times: Sequence[float]
    ) -> tuple[float, list[float], int | None]:
        """Return the run's seconds, each stage's end, and the pool (index) that limits the run.
        The pool is None if a chain of stages limits the run. ``times`` come from :meth:`times_s`.
        """
        ends: list[float] = []
        binding = None
        for (begin, before), time in zip(self._starts, times, strict=True):
            for other in before:
                if ends[other] > begin:  # noqa: PLR1730 - twice as fast as max
                    begin = ends[other]  # noqa: PLW2901
            ends.append(begin + time)
        longest = max(ends, default=0.0)
        for pool, own, work in self._shared:
            if not workers[pool] or longest == math.inf:
                continue
            bound = min(ends[i] - times[i] for i in own) + work / workers[pool]
            if bound > longest * (1 + 1e-12):
                longest, binding = bound, pool
        return longest, ends, binding

    def most_useful(self, pool: int) -> int:
        """Return the number of workers with which a pool can run all its tasks at once."""
        calls = sum(self.stages[i].calls for i in self.stages_of[pool])
        return math.ceil(calls / self.slots[pool])

    @property
    def layered(self) -> bool:
        """True if each stage waits for all stages of the previous layer."""
        layers = self.layers
        for earlier, later in itertools.pairwise(layers):
            if any(set(self.stages[i].before) != set(earlier) for i in later):
                return False
        # Two stages of one pool in one layer compete for workers, which a sum of layers ignores.
        return all(len({self.stages[i].pool for i in layer}) == len(layer) for layer in layers)

    @property
    def layers(self) -> list[list[int]]:
        """Positions of the stages, grouped by the length of the longest chain before them."""
        depth: list[int] = []
        for stage in self.stages:
            depth.append(1 + max((depth[i] for i in stage.before), default=-1))
        layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
        for position, level in enumerate(depth):
            layers[level].append(position)
        return layers


def spread_of(forecast: Forecast) -> float:
    """Return the standard deviation of the logarithms of durations, or 0 if all are equal."""
    if min(forecast.q50_s, forecast.q80_s) <= 0:
        return 0.0
    near = math.log(forecast.q80_s / forecast.q50_s) / _Z80
    far = math.log(max(forecast.q95_s, forecast.q80_s) / forecast.q50_s) / _Z95
    return max(0.0, near, far)


def make_network(
    calls: Sequence[ExpectedTasks],
    slots: Mapping[str, int],
    startup_s: Mapping[str, float],
    duration_of: Callable[[Forecast], float] = lambda forecast: forecast.mean_s,
) -> Network:
    """Return the network of stages, ignoring unknown names in ``after``.
    ``slots`` are in the order of the pools. ``duration_of`` returns a task's planned seconds.
    """
    tags = list(slots)
    by_name = {c.task: c for c in calls}
    graph = {c.task: tuple(t for t in dict.fromkeys(c.after) if t in by_name) for c in calls}
    grouped: dict[tuple[str, frozenset[str]], list[ExpectedTasks]] = {}
    for name in TopologicalSorter(graph).static_order():
        grouped.setdefault((by_name[name].tag, frozenset(graph[name])), []).append(by_name[name])
    # Stages need their own order: a stage waits for everything that any of its tasks waits for.
    position_of = {c.task: key for key, group in grouped.items() for c in group}
    order = TopologicalSorter(
        {key: {position_of[name] for name in key[1]} for key in grouped}
    ).static_order()
    positions: dict[tuple[str, frozenset[str]], int] = {}
    stages: list[ReadyStage] = []
    for key in order:
        before = tuple(sorted({positions[position_of[name]] for name in key[1]}))
        positions[key] = len(stages)
        stages.append(_stage(tags.index(key[0]), grouped[key], before, duration_of))
    return Network(tags, list(slots.values()), [startup_s.get(t, 0.0) for t in tags], stages)


def _stage(
    pool: int,
    group: Sequence[ExpectedTasks],
    before: tuple[int, ...],
    duration_of: Callable[[Forecast], float],
) -> ReadyStage:
    running = [c for c in group if c.count]
    counted = sum(c.count for c in running)
    lengths = {duration_of(c.forecast) for c in running}
    even = len(lengths) == 1 and all(spread_of(c.forecast) == 0 for c in running)
    longest = max((_longest(c, duration_of(c.forecast)) for c in running), default=0.0)
    tails = [
        min(duration_of(c.forecast) * _overhang(c), _TAIL * _longest(c, duration_of(c.forecast)))
        for c in running
    ]
    return ReadyStage(
        pool=pool,
        tasks=tuple(c.task for c in group),
        calls=counted,
        work_s=sum(c.count * duration_of(c.forecast) for c in running),
        longest_s=longest,
        tail_s=max(tails, default=0.0),
        even=even,
        before=before,
    )


def _overhang(calls: ExpectedTasks) -> float:
    """Return a stage's tail as a multiple of the mean duration."""
    # The mean remaining time of a running task is E[d^2] / 2 E[d]. The result is larger, because
    # the last of several tasks finishes later than a single task.
    spread = min(spread_of(calls.forecast), 1.5)
    return 0.5 * math.exp(spread**2) * (1 + spread)


def _longest(calls: ExpectedTasks, duration_s: float) -> float:
    """Return the expected seconds of the longest task, for lognormal durations."""
    spread = spread_of(calls.forecast)
    if spread == 0 or calls.count == 1:
        return duration_s
    share = min(calls.count / (calls.count + 1), 1 - _BEYOND_LONGEST)
    longest = duration_s * math.exp(spread * NormalDist().inv_cdf(share) - spread**2 / 2)
    return max(duration_s, longest)
