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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from statistics import fmean

from scalable.planning.knowledge import Knowledge
from scalable.planning.network import Network, spread_of
from scalable.planning.work import ExpectedTasks

#: Number of simulated runs.
DRAWS = 200
#: Maximum number of groups of tasks in one simulated run.
_GROUPS = 600
#: Numbers of slots of one pool to which a run with too many groups is scaled down.
_SCALES = (64, 32, 16, 8, 4, 2)
#: Assumed probability that a task waits only for its share of the tasks of the name before. The
#: manifest does not contain it. In recorded graphs tasks do so.
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
    #: Positions of the names before it.
    before: tuple[int, ...]
    #: Seconds of the longest chain that starts with this name. The longest chains run first.
    path_s: float


@dataclass(frozen=True)
class _Overlap:
    """Two task names. Each task of the later name waits only for a share of the earlier tasks."""

    earlier: int
    later: int
    #: For each group of the earlier name, the groups of the later one that wait for it.
    groups: Sequence[range]


def draw_runs(
    network: Network,
    calls: Sequence[ExpectedTasks],
    workers: Sequence[int],
    knowledge: Knowledge | None = None,
    seed: int = 0,
    number: int = DRAWS,
) -> list[Draw]:
    """Return runs simulated with random draws from the forecasts, reproducible by ``seed``."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    knowledge = knowledge or Knowledge()
    slots, tasks = _tasks(network, calls, workers)
    expected = [sum(network.stages[i].work_s for i in own) for own in network.stages_of]
    models = [DrawnDurations(task.calls) for task in tasks]
    overlaps = []
    for overlap in _overlaps(tasks):
        names = tasks[overlap.earlier].calls.task, tasks[overlap.later].calls.task
        overlaps.append((overlap, knowledge.overlaps.get(names, _OVERLAPS)))
    draws = []
    for _ in range(number):
        run = knowledge.run_spread.draw(chance)
        # Tasks that were measured on other targets share one error, that of this target.
        elsewhere = chance.gauss(0, ERROR_ELSEWHERE)
        lengths = []
        for t, model in zip(tasks, models, strict=True):
            own = elsewhere if t.calls.forecast.elsewhere else chance.gauss(0, error_of(t.calls))
            lengths.append(model.sums(t.sizes, math.exp(run + own), chance))
        starts = [
            _starts(tag, slots[pool], network.startup_s[pool], knowledge, chance)
            for pool, tag in enumerate(network.tags)
        ]
        # A program that waits for all tasks of a name does so everywhere: one number for all pairs.
        barrier = chance.random()
        overlapping = [overlap for overlap, share in overlaps if barrier < share]
        time_s = _Simulation(tasks, lengths, starts, overlapping).length_s()
        work = [0.0] * len(network.tags)
        for task, each in zip(tasks, lengths, strict=True):
            work[task.pool] += sum(each) * task.calls.count / sum(task.sizes)
        draws.append(
            Draw(time_s, [w / e if e else 1.0 for w, e in zip(work, expected, strict=True)])
        )
    return draws


def _starts(
    tag: str, slots: int, startup_s: float, knowledge: Knowledge, chance: random.Random
) -> list[float]:
    measured = knowledge.startups_s.get(tag)
    return chance.choices(measured, k=slots) if measured else [startup_s] * slots


def _tasks(
    network: Network, calls: Sequence[ExpectedTasks], workers: Sequence[int]
) -> tuple[list[int], list[_Task]]:
    """Return each pool's slots and each name's groups, both scaled down for many tasks."""
    pool_of = {tag: pool for pool, tag in enumerate(network.tags)}
    slots = [count * each for count, each in zip(workers, network.slots, strict=True)]
    shares = [1.0] * len(slots)
    sizes = _all_sizes(calls, pool_of, slots, shares)
    for most in _SCALES:
        if sum(map(len, sizes)) <= _GROUPS:
            break
        shares = [min(1.0, most / max(1, count)) for count in slots]
        sizes = _all_sizes(calls, pool_of, slots, shares)
    position: dict[str, int] = {}
    for c, each in zip(calls, sizes, strict=True):
        if each:
            position[c.task] = len(position)
    paths_s = _paths_s(calls)
    tasks = [
        _Task(c, pool_of[c.tag], each, _before(c, calls, position), paths_s[c.task])
        for c, each in zip(calls, sizes, strict=True)
        if each
    ]
    return [max(1, round(n * share)) for n, share in zip(slots, shares, strict=True)], tasks


def _before(
    calls: ExpectedTasks, everything: Sequence[ExpectedTasks], position: Mapping[str, int]
) -> tuple[int, ...]:
    """Return positions of preceding names. A name without tasks is replaced by its predecessors."""
    by_name = {c.task: c for c in everything}
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


def _overlaps(tasks: Sequence[_Task]) -> Iterator[_Overlap]:
    ends = [[*itertools.accumulate(task.sizes)] for task in tasks]
    for place, task in enumerate(tasks):
        for other in task.before:
            if min(ends[other][-1], ends[place][-1]) > 1:
                yield _Overlap(other, place, _shares(ends[other], ends[place]))


def _shares(earlier: Sequence[int], later: Sequence[int]) -> list[range]:
    """Return the later groups that wait for each earlier group, given the groups' last tasks."""
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
        count = max(1, round(c.count * shares[pool])) if c.count else 0
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


class _Simulation:
    def __init__(
        self,
        tasks: Sequence[_Task],
        lengths: Sequence[Sequence[float]],
        starts: Sequence[Sequence[float]],
        overlapping: Iterable[_Overlap],
    ) -> None:
        self.tasks, self.lengths = tasks, lengths
        self.left = [sum(task.sizes) for task in tasks]
        #: Ready groups of each pool: negative ``path_s``, running number, name, group.
        self.queues: list[list[tuple[float, int, int, int]]] = [[] for _ in starts]
        self.number = itertools.count()
        self.idle = [0] * len(starts)
        #: Number of unfinished names before each name, and of groups before each group.
        self.waits = [len(task.before) for task in tasks]
        self.group_waits = [[0] * len(task.sizes) for task in tasks]
        self.follows: list[list[_Overlap]] = [[] for _ in tasks]
        self.after: list[list[int]] = [[] for _ in tasks]
        by_parts = set()
        for overlap in overlapping:
            self.follows[overlap.earlier].append(overlap)
            self.waits[overlap.later] -= 1
            by_parts.add((overlap.earlier, overlap.later))
            waits = self.group_waits[overlap.later]
            for groups in overlap.groups:
                for group in groups:
                    waits[group] += 1
        for place, task in enumerate(tasks):
            for other in task.before:
                if (other, place) not in by_parts:
                    self.after[other].append(place)
        #: Time, name and group of each end. For a slot that connects, the name is -1 and the group
        #: is its pool.
        self.events = [(at, -1, pool) for pool, each in enumerate(starts) for at in each]
        heapq.heapify(self.events)

    def length_s(self) -> float:
        """Return the seconds until all tasks have finished, or inf if some cannot run."""
        for place, waits in enumerate(self.waits):
            if not waits:
                self.release(place, 0.0)
        events, now, unfinished = self.events, 0.0, len(self.tasks)
        while unfinished and events:
            now, place, group = heapq.heappop(events)
            pool = group
            if place >= 0:
                task = self.tasks[place]
                pool = task.pool
                self.left[place] -= task.sizes[group]
                for overlap in self.follows[place]:
                    self.follow(overlap, group, now)
                if not self.left[place]:
                    unfinished -= 1
                    for other in self.after[place]:
                        self.waits[other] -= 1
                        if not self.waits[other]:
                            self.release(other, now)
            self.idle[pool] += 1
            self.dispatch(pool, now)
        return math.inf if unfinished else now

    def follow(self, overlap: _Overlap, group: int, now: float) -> None:
        """Queue the later groups that waited only for ``group``, now finished."""
        waits, ready = self.group_waits[overlap.later], []
        for other in overlap.groups[group]:
            waits[other] -= 1
            if not waits[other] and not self.waits[overlap.later]:
                ready.append(other)
        if ready:
            self.queue(overlap.later, ready, now)

    def release(self, place: int, now: float) -> None:
        """Queue a name's unblocked groups, once the name waits for no other whole name."""
        self.queue(place, [g for g, waits in enumerate(self.group_waits[place]) if not waits], now)

    def queue(self, place: int, groups: Iterable[int], now: float) -> None:
        task = self.tasks[place]
        for group in groups:
            heapq.heappush(self.queues[task.pool], (-task.path_s, next(self.number), place, group))
        self.dispatch(task.pool, now)

    def dispatch(self, pool: int, now: float) -> None:
        queue = self.queues[pool]
        while queue and self.idle[pool]:
            *_, place, group = heapq.heappop(queue)
            self.idle[pool] -= 1
            heapq.heappush(self.events, (now + self.lengths[place][group], place, group))


# Durations ----------------------------------------------------------------------------------------

#: Assumed errors as standard deviations of logarithms: of durations in the manifest, of durations
#: that were measured on other targets, and of guesses.
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

    def sums(self, sizes: Sequence[int], factor: float, chance: random.Random) -> list[float]:
        """Draw the total duration of each group of tasks, multiplied by ``factor``."""
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            # With n - 1 draws the mean varies as much as the mean of n tasks does.
            few = len(self._known) <= _MOST_REPEATED
            again = chance.choices(self._known, k=len(self._known) - 1) if few else self._known
            drawn, mean = chance.choices(again, k=count), fmean(again)
        else:
            spread = self._spread
            middle = self._log_mean - spread**2 / 2
            if not spread:
                return [factor * size * math.exp(middle) for size in sizes]
            if self._count:
                middle = chance.gauss(middle, spread / math.sqrt(self._count))
            drawn = [math.exp(chance.gauss(middle, spread)) for _ in range(count)]
            mean = math.exp(middle + spread**2 / 2)
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
    """Return the shared error (of logarithms) of a name's tasks, without the sampling error."""
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
