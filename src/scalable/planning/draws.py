"""Simulated runs for computing confidence and intervals. Does no I/O.

Many tasks of a name are simulated in groups whose size falls towards the end (factoring, Hummel et
al. 1992), because the last tasks determine when all have finished.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from statistics import fmean
from typing import NamedTuple

from scalable.planning.knowledge import Knowledge
from scalable.planning.network import Network, spread_of
from scalable.planning.work import ExpectedTasks

#: Number of simulated runs, normally and at least (for large graphs).
DRAWS, LEAST_DRAWS = 200, 40
#: Limit of the simulation's work, in groups of tasks over all :data:`DRAWS` runs.
_WORK = 50_000
#: Number of drawn durations, and of dependencies, that cost as much time as one group.
_DRAWN_EACH, _WAITS_EACH = 8, 30
#: Number of drawn values from which each run-wide value is taken, as an evenly spaced quantile.
_STRATUM = 15
#: Maximum number of groups of tasks in one simulated run.
_GROUPS = 600
#: Slots per pool that are tried when a run has too many groups, the largest first.
_SCALES = (64, 32, 16, 8, 4, 2)
#: Assumed probability that a task waits only for its share of the preceding name's tasks, as in
#: recorded graphs. The manifest does not contain it.
_OVERLAPS = 0.5


@dataclass(frozen=True)
class Draw:
    """One simulated run."""

    time_s: float
    #: Work of each pool as a multiple of its expected work.
    work: Sequence[float]


@dataclass(frozen=True)
class _Task:
    """Groups of tasks of one name."""

    calls: ExpectedTasks
    pool: int
    #: Number of tasks in each group.
    sizes: Sequence[int]
    #: Positions of the task names that must finish first.
    before: tuple[int, ...]
    #: Number of its first group. Groups are numbered consecutively over all names.
    first: int


@dataclass(frozen=True)
class _Overlap:
    """Two task names. Each task of the later name waits only for a share of the earlier tasks."""

    earlier: int
    later: int
    #: For each group of the earlier name, the groups of the later one that wait for it.
    groups: Sequence[range]
    #: Probability of the overlap.
    share: float


def draw_runs(
    network: Network,
    calls: Sequence[ExpectedTasks],
    workers: Sequence[int],
    knowledge: Knowledge | None = None,
    seed: int = 0,
    number: int = DRAWS,
) -> list[Draw]:
    """Return runs simulated with random draws from the forecasts, reproducible by ``seed``.
    There are fewer than ``number`` for a large graph, where errors of many names cancel out. The
    variation that all names share is drawn evenly, so that few runs represent it.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    knowledge = knowledge or Knowledge()
    slots, tasks = _tasks(network, calls, workers)
    expected = [sum(network.stages[i].work_s for i in own) for own in network.stages_of]
    models = [DrawnDurations(task.calls) for task in tasks]
    errors = [error_of(task.calls) for task in tasks]
    overlaps = list(_overlaps(tasks, knowledge))
    work_units = sum(
        len(t.sizes) + m.drawn(t.sizes) / _DRAWN_EACH for t, m in zip(tasks, models, strict=True)
    )
    work_units += sum(map(len, itertools.chain(*(o.groups for o in overlaps)))) / _WAITS_EACH
    share = min(1.0, max(LEAST_DRAWS, _WORK / max(1.0, work_units)) / DRAWS)
    number = math.ceil(number * share)
    simulation = _Simulation(tasks, len(slots), overlaps)
    runs = _evenly(lambda: knowledge.run_spread.draw(chance), number, chance)
    # Tasks that were measured on other targets share one error, that of this target.
    elsewhere = _evenly(lambda: chance.gauss(0, ERROR_ELSEWHERE), number, chance)
    # A program that waits for all tasks of a name does so everywhere: one number for all pairs.
    barriers = _evenly(chance.random, number, chance)
    draws = []
    for run, shared, barrier in zip(runs, elsewhere, barriers, strict=True):
        lengths: list[float] = []
        work = [0.0] * len(network.tags)
        for t, model, error in zip(tasks, models, errors, strict=True):
            own = shared if t.calls.forecast.elsewhere else chance.gauss(0, error) if error else 0.0
            each = model.sums(t.sizes, math.exp(run + own), chance)
            work[t.pool] += sum(each) * t.calls.count / sum(t.sizes)
            lengths += each
        starts = [
            _starts(tag, slots[pool], network.startup_s[pool], knowledge, chance)
            for pool, tag in enumerate(network.tags)
        ]
        time_s = simulation.length_s(lengths, starts, barrier)
        draws.append(
            Draw(time_s, [w / e if e else 1.0 for w, e in zip(work, expected, strict=True)])
        )
    return draws


def _evenly(draw: Callable[[], float], number: int, chance: random.Random) -> list[float]:
    """Return evenly spaced quantiles of a distribution, in random order."""
    found = sorted(draw() for _ in range(_STRATUM * number))[_STRATUM // 2 :: _STRATUM]
    chance.shuffle(found)
    return found


def _starts(
    tag: str, slots: int, startup_s: float, knowledge: Knowledge, chance: random.Random
) -> list[float]:
    measured = knowledge.startups_s.get(tag)
    return chance.choices(measured, k=slots) if measured else [startup_s] * slots


def _tasks(
    network: Network, calls: Sequence[ExpectedTasks], workers: Sequence[int]
) -> tuple[list[int], list[_Task]]:
    """Return each pool's slots and each name's groups, both scaled down for many tasks.
    The names with the longest chains of tasks behind them come first.
    """
    pool_of = {tag: pool for pool, tag in enumerate(network.tags)}
    slots = [count * each for count, each in zip(workers, network.slots, strict=True)]
    by_name, paths_s = {c.task: c for c in calls}, _paths_s(calls)
    running = sorted((c for c in calls if c.count), key=lambda c: -paths_s[c.task])
    shares = [1.0] * len(slots)
    sizes = _all_sizes(running, pool_of, slots, shares)
    for most in _SCALES:
        if sum(map(len, sizes)) <= _GROUPS:
            break
        shares = [min(1.0, most / max(1, count)) for count in slots]
        sizes = _all_sizes(running, pool_of, slots, shares)
    position = {c.task: place for place, c in enumerate(running)}
    firsts = itertools.accumulate(map(len, sizes), initial=0)
    tasks = [
        _Task(c, pool_of[c.tag], each, _before(c, by_name, position), first)
        for c, each, first in zip(running, sizes, firsts, strict=False)
    ]
    return [max(1, round(n * share)) for n, share in zip(slots, shares, strict=True)], tasks


def _before(
    calls: ExpectedTasks, by_name: Mapping[str, ExpectedTasks], position: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the preceding names' positions. Replace a name without tasks by its predecessors."""
    found: set[int] = set()
    seen: set[str] = set()
    left = list(calls.after)
    while left:
        name = left.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        if name in position:
            found.add(position[name])
        else:
            left += by_name[name].after
    return tuple(sorted(found))


def _paths_s(calls: Sequence[ExpectedTasks]) -> dict[str, float]:
    """Return the seconds of the longest chain of tasks that starts with each name."""
    by_name = {c.task: c for c in calls}
    paths_s = {c.task: c.forecast.mean_s for c in calls}
    order = TopologicalSorter({c.task: [t for t in c.after if t in by_name] for c in calls})
    for name in reversed([*order.static_order()]):
        for other in by_name[name].after:
            if other in by_name:
                whole = by_name[other].forecast.mean_s + paths_s[name]
                paths_s[other] = max(paths_s[other], whole)
    return paths_s


def _overlaps(tasks: Sequence[_Task], knowledge: Knowledge) -> Iterator[_Overlap]:
    ends = [[*itertools.accumulate(task.sizes)] for task in tasks]
    for place, task in enumerate(tasks):
        for other in task.before:
            if min(ends[other][-1], ends[place][-1]) > 1:
                share = knowledge.overlaps.get(
                    (tasks[other].calls.task, task.calls.task), _OVERLAPS
                )
                yield _Overlap(other, place, _shares(ends[other], ends[place]), share)


def _shares(earlier: Sequence[int], later: Sequence[int]) -> list[range]:
    """Return, for each earlier group, the range of later groups that wait for it."""
    found = []
    begin = 0
    for end in earlier:
        # Both names are scaled to the product of their task counts, to compare integers.
        first = bisect_right(later, begin * later[-1] // earlier[-1])
        last = bisect_left(later, -(-end * later[-1] // earlier[-1]))
        found.append(range(first, min(last, len(later) - 1) + 1))
        begin = end
    return found


def _all_sizes(
    calls: Sequence[ExpectedTasks],
    pool_of: Mapping[str, int],
    slots: Sequence[int],
    shares: Sequence[float],
) -> list[list[int]]:
    found = []
    for c in calls:
        pool = pool_of[c.tag]
        count = max(1, round(c.count * shares[pool]))
        found.append(_sizes(count, max(1, round(slots[pool] * shares[pool]))))
    return found


def _sizes(count: int, slots: int) -> list[int]:
    """Return group sizes, from large groups to single tasks."""
    sizes = []
    while count:
        size = max(1, count // (4 * slots))
        sizes.append(size)
        count -= size
    return sizes


class _Waits(NamedTuple):
    """Dependencies of groups and names, for runs with the same overlapping names."""

    #: For each group: the number of groups it waits for, and the groups that wait for it.
    groups: list[int]
    following: list[list[int]]
    #: For each name: the number of names it waits for, and the names that wait for all of it.
    names: list[int]
    after: list[list[int]]


class _Simulation:
    """Simulator of runs with the same tasks. The lowest of several ready groups starts first."""

    def __init__(self, tasks: Sequence[_Task], pools: int, overlaps: Sequence[_Overlap]) -> None:
        self.tasks, self.pools, self.overlaps = tasks, pools, overlaps
        self.name_of = [place for place, task in enumerate(tasks) for _ in task.sizes]
        self.pool_of = [tasks[place].pool for place in self.name_of]
        self.waits: dict[int, _Waits] = {}

    def waits_of(self, barrier: float) -> _Waits:
        overlapping = [overlap for overlap in self.overlaps if barrier < overlap.share]
        # The pairs that overlap are those with the highest probabilities: their number says which.
        if len(overlapping) not in self.waits:
            self.waits[len(overlapping)] = self.all_waits(overlapping)
        return self.waits[len(overlapping)]

    def all_waits(self, overlapping: Sequence[_Overlap]) -> _Waits:
        tasks = self.tasks
        groups, following = [0] * len(self.name_of), [list[int]() for _ in self.name_of]
        names, after = [len(task.before) for task in tasks], [list[int]() for _ in tasks]
        for overlap in overlapping:
            names[overlap.later] -= 1
            first = tasks[overlap.later].first
            for group, waiting in enumerate(overlap.groups, tasks[overlap.earlier].first):
                for other in waiting:
                    groups[first + other] += 1
                    following[group].append(first + other)
        by_parts = {(overlap.earlier, overlap.later) for overlap in overlapping}
        for place, task in enumerate(tasks):
            for other in task.before:
                if (other, place) not in by_parts:
                    after[other].append(place)
        return _Waits(groups, following, names, after)

    def length_s(
        self, lengths: Sequence[float], starts: Sequence[Sequence[float]], barrier: float
    ) -> float:
        """Return the seconds until all tasks have finished, or inf if some cannot run.
        ``lengths`` are seconds of the groups, ``starts`` the times at which slots connect.
        """
        found, pool_of = self.waits_of(barrier), self.pool_of
        # What is still unfinished before each group and name, and of each name.
        found = found._replace(groups=found.groups.copy(), names=found.names.copy())
        left = [len(task.sizes) for task in self.tasks]
        queues: list[list[int]] = [[] for _ in starts]
        idle = [0] * self.pools
        for group, place in enumerate(self.name_of):  # in ascending order, as in a heap
            if not found.groups[group] and not found.names[place]:
                queues[pool_of[group]].append(group)
        # Time and group of each end. For a slot that connects, the group is -1 - its pool.
        events = [(at, -1 - pool) for pool, each in enumerate(starts) for at in each]
        heapq.heapify(events)
        unfinished, now = len(left), 0.0
        while unfinished and events:
            now, group = events[0]
            pool = -1 - group
            ready: list[int] = []
            if group >= 0:
                pool = pool_of[group]
                ready = self.end(group, found, left)
                unfinished -= not left[self.name_of[group]]
                for other in ready:
                    heapq.heappush(queues[pool_of[other]], other)
            if queues[pool]:
                group = heapq.heappop(queues[pool])
                heapq.heapreplace(events, (now + lengths[group], group))
            else:
                heapq.heappop(events)
                idle[pool] += 1
            for other in ready:
                pool = pool_of[other]
                while idle[pool] and queues[pool]:
                    idle[pool] -= 1
                    group = heapq.heappop(queues[pool])
                    heapq.heappush(events, (now + lengths[group], group))
        return math.inf if unfinished else now

    def end(self, group: int, waits: _Waits, left: list[int]) -> list[int]:
        """Count a finished group. Return the groups that waited only for it."""
        groups, names, name_of = waits.groups, waits.names, self.name_of
        ready = []
        for other in waits.following[group]:
            groups[other] -= 1
            if not groups[other] and not names[name_of[other]]:
                ready.append(other)
        place = name_of[group]
        left[place] -= 1
        if not left[place]:
            for later in waits.after[place]:
                names[later] -= 1
                if not names[later]:
                    first = self.tasks[later].first
                    whole = range(first, first + left[later])
                    ready += [other for other in whole if not groups[other]]
        return ready


# Durations ----------------------------------------------------------------------------------------

#: Assumed errors of durations (standard deviations of logarithms): from the manifest, measured on
#: other targets, and guessed.
ERROR_OF_MANIFEST, ERROR_ELSEWHERE, ERROR_OF_GUESS = 0.5, 0.5, 1.0
#: Minimum number of measured durations for a bootstrap.
ENOUGH_TO_REPEAT = 10
#: Number of measured durations above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Maximum number of drawn tasks of a group. The sum of a larger group is extrapolated.
_MOST_DRAWN = 100
#: Smallest duration in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6


class DrawnDurations:
    """Distribution of a name's durations: a bootstrap, or lognormal for few measurements."""

    def __init__(self, calls: ExpectedTasks) -> None:
        forecast = calls.forecast
        self._known: Sequence[float] = forecast.durations_s
        self._count = len(self._known) or forecast.samples
        self._spread = spread_of(forecast)
        mean_s = fmean(self._known) if self._known else forecast.mean_s
        self._log_mean = math.log(max(mean_s, _LEAST_S))

    def drawn(self, sizes: Sequence[int]) -> int:
        """Return the number of durations that :meth:`sums` draws for these group sizes."""
        each = sum(min(size, _MOST_DRAWN) for size in sizes) if self._known or self._spread else 0
        return each + min(len(self._known), _MOST_REPEATED)

    def sums(self, sizes: Sequence[int], factor: float, chance: random.Random) -> list[float]:
        """Draw the total duration of each group of tasks, multiplied by ``factor``."""
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            # With n - 1 draws the mean varies as much as the mean of n tasks does.
            few = len(self._known) <= _MOST_REPEATED
            again = chance.choices(self._known, k=len(self._known) - 1) if few else self._known
            drawn = chance.choices(again, k=count)
            mean = 0.0 if count == sum(sizes) else fmean(again)
        else:
            spread = self._spread
            middle = self._log_mean - spread**2 / 2
            if not spread:
                each_s = factor * math.exp(middle)
                return [each_s * size for size in sizes]
            if self._count:
                middle = chance.gauss(middle, spread / math.sqrt(self._count))
            drawn = [math.exp(chance.gauss(middle, spread)) for _ in range(count)]
            mean = math.exp(middle + spread**2 / 2)
        if count == len(sizes):
            return [factor * one for one in drawn]
        each = iter(drawn)
        return [
            factor * _sum_of(size, list(itertools.islice(each, part)), mean)
            for size, part in zip(sizes, drawn_sizes, strict=True)
        ]


def _sum_of(size: int, drawn: Sequence[float], mean: float) -> float:
    """Extrapolate the sum of ``size`` durations from the first ones."""
    # The sum of all differs from its expectation by as many standard deviations as the part.
    part, count = sum(drawn), len(drawn)
    if size == count:
        return part
    return size * mean + math.sqrt(size / count) * (part - count * mean)


def error_of(calls: ExpectedTasks) -> float:
    """Return the error that a name's tasks share, as a standard deviation of logarithms."""
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
