"""Simulated runs, from which confidence and intervals are computed. No I/O.

A run is simulated call by call: the calls of a pool start in the order in which they become ready,
on the slots of workers that connect after their own start-up times. Many calls of a task are
simulated in groups, whose size falls towards the task's end (factoring, Hummel et al.
1992), because the last calls determine when the task ends.
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
from scalable.planning.work import Calls

#: Number of simulated runs.
DRAWS = 200
#: Maximum number of groups of calls in one simulated run.
_GROUPS = 600
#: Numbers of slots of one pool to which a run with too many groups is scaled down.
_SCALES = (64, 32, 16, 8, 4, 2)
#: Probability that calls wait only for their share of the calls of a task before them, if no
#: earlier run shows it. A manifest does not say it; in recorded graphs of calls, they do.
_OVERLAPS = 0.5


@dataclass(frozen=True)
class Draw:
    """One simulated run.

    Attributes
    ----------
    time_s
        Length of the run in seconds.
    work
        Work of each pool as a multiple of its expected work.
    """

    time_s: float
    work: Sequence[float]


@dataclass(frozen=True)
class _Task:
    """Groups of calls of one task.

    Attributes
    ----------
    calls, pool, sizes
        Calls of the task, position of its pool, and sizes of the groups.
    before
        Positions of the tasks before it.
    path_s
        Seconds of the longest chain of calls that begins with a call of the task. Of the ready
        calls of a pool, those with the longest chain run first.
    """

    calls: Calls
    pool: int
    sizes: Sequence[int]
    before: tuple[int, ...]
    path_s: float


@dataclass(frozen=True)
class _Overlap:
    """Two tasks of which each later call waits only for its share of the earlier calls.

    Attributes
    ----------
    earlier, later
        Positions of the tasks.
    groups
        For each group of the earlier task, the groups of the later one that wait for it.
    """

    earlier: int
    later: int
    groups: Sequence[range]


def draw_runs(
    network: Network,
    calls: Sequence[Calls],
    workers: Sequence[int],
    knowledge: Knowledge | None = None,
    seed: int = 0,
    number: int = DRAWS,
) -> list[Draw]:
    """Return simulated runs, drawn at random from the forecasts; equal seeds give equal runs.

    Parameters
    ----------
    network
        Stages of the calls.
    calls
        Calls with their forecasts.
    workers
        Number of workers of each pool.
    knowledge
        Start-up times, and the variation from run to run.
    seed
        Seed of the random numbers.
    number
        Number of simulated runs.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    knowledge = knowledge or Knowledge()
    slots, tasks = _tasks(network, calls, workers)
    expected = [sum(network.stages[i].work_s for i in own) for own in network.stages_of]
    models = [Lengths(task.calls) for task in tasks]
    overlaps = []
    for overlap in _overlaps(tasks):
        names = tasks[overlap.earlier].calls.task, tasks[overlap.later].calls.task
        overlaps.append((overlap, knowledge.overlaps.get(names, _OVERLAPS)))
    draws = []
    for _ in range(number):
        run = knowledge.run_spread.draw(chance)
        # Tasks that were measured on other targets share their error: it is that of this target.
        elsewhere = chance.gauss(0, ERROR_ELSEWHERE)
        lengths = []
        for t, model in zip(tasks, models, strict=True):
            own = elsewhere if t.calls.forecast.elsewhere else chance.gauss(0, error_of(t.calls))
            lengths.append(model.sums(t.sizes, math.exp(run + own), chance))
        starts = [
            _starts(tag, slots[pool], network.startup_s[pool], knowledge, chance)
            for pool, tag in enumerate(network.tags)
        ]
        # Programs that wait for whole tasks do so everywhere: one number for all pairs of tasks.
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
    network: Network, calls: Sequence[Calls], workers: Sequence[int]
) -> tuple[list[int], list[_Task]]:
    """Return the simulated slots of each pool, and the tasks that have calls."""
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
    calls: Calls, everything: Sequence[Calls], position: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the positions of the tasks before a task; a task without calls passes on its own."""
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


def _paths_s(calls: Sequence[Calls]) -> dict[str, float]:
    """Return task -> seconds of the longest chain of calls that begins with one of its calls."""
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
    """Yield the pairs of tasks whose calls may overlap, with equal shares of the earlier calls."""
    ends = [[*itertools.accumulate(task.sizes)] for task in tasks]
    for place, task in enumerate(tasks):
        for other in task.before:
            if min(ends[other][-1], ends[place][-1]) > 1:
                yield _Overlap(other, place, _shares(ends[other], ends[place]))


def _shares(earlier: Sequence[int], later: Sequence[int]) -> list[range]:
    """Return the groups of a later task that wait for each group of an earlier one.

    Parameters
    ----------
    earlier, later
        Number of calls up to the end of each group.
    """
    found = []
    begin = 0
    for end in earlier:
        # Both tasks are drawn on one line of length calls x calls, to compare whole numbers.
        first = bisect_right(later, begin * later[-1] // earlier[-1])
        last = bisect_left(later, -(-end * later[-1] // earlier[-1]))
        found.append(range(first, min(last, len(later) - 1) + 1))
        begin = end
    return found


def _all_sizes(
    calls: Sequence[Calls],
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
    """Return the sizes of groups of calls: large ones first, and single calls at the end."""
    sizes = []
    while count:
        size = max(1, count // (4 * slots))
        sizes.append(size)
        count -= size
    return sizes


class _Simulation:
    """One run: tasks, the lengths of their groups, and the connection times of the slots."""

    def __init__(
        self,
        tasks: Sequence[_Task],
        lengths: Sequence[Sequence[float]],
        starts: Sequence[Sequence[float]],
        overlapping: Iterable[_Overlap],
    ) -> None:
        self.tasks, self.lengths = tasks, lengths
        self.left = [sum(task.sizes) for task in tasks]
        #: Ready groups of each pool: the negative rank of the task, a running number, task, group.
        self.queues: list[list[tuple[float, int, int, int]]] = [[] for _ in starts]
        self.number = itertools.count()
        self.idle = [0] * len(starts)
        #: Number of tasks, and for each group of groups, that have to end before.
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
        #: Time, task and group of each end. Where a slot connects, the task is -1, and the pool's
        #: position stands in place of the group.
        self.events = [(at, -1, pool) for pool, each in enumerate(starts) for at in each]
        heapq.heapify(self.events)

    def length_s(self) -> float:
        """Return the seconds until all calls have ended."""
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
        """Queue the groups of a later task that waited only for a group which has ended."""
        waits, ready = self.group_waits[overlap.later], []
        for other in overlap.groups[group]:
            waits[other] -= 1
            if not waits[other] and not self.waits[overlap.later]:
                ready.append(other)
        if ready:
            self.queue(overlap.later, ready, now)

    def release(self, place: int, now: float) -> None:
        """Queue the groups of a task that waits for no other task as a whole."""
        self.queue(place, [g for g, waits in enumerate(self.group_waits[place]) if not waits], now)

    def queue(self, place: int, groups: Iterable[int], now: float) -> None:
        """Queue groups of a task, and start as many of them as there are idle slots."""
        task = self.tasks[place]
        for group in groups:
            heapq.heappush(self.queues[task.pool], (-task.path_s, next(self.number), place, group))
        self.dispatch(task.pool, now)

    def dispatch(self, pool: int, now: float) -> None:
        """Start queued groups on idle slots."""
        queue = self.queues[pool]
        while queue and self.idle[pool]:
            *_, place, group = heapq.heappop(queue)
            self.idle[pool] -= 1
            heapq.heappush(self.events, (now + self.lengths[place][group], place, group))


# Lengths ------------------------------------------------------------------------------------------

#: Assumed errors as standard deviations of logarithms: of durations in the manifest, of running
#: times that were measured on other targets, and of guesses.
ERROR_OF_MANIFEST, ERROR_ELSEWHERE, ERROR_OF_GUESS = 0.5, 0.5, 1.0
#: Minimum number of measured running times that are drawn again.
ENOUGH_TO_REPEAT = 10
#: Number of measured running times above which their sampling error is not simulated.
_MOST_REPEATED = 500
#: Number of calls of a group that are drawn; the sum of more follows from them.
_MOST_DRAWN = 100
#: Smallest running time in seconds, since shorter ones have no useful logarithm.
_LEAST_S = 1e-6


class Lengths:
    """Distribution of a task's running times, and what is uncertain in it.

    Measured running times are drawn again (bootstrap). A few of them are taken as a sample of a
    lognormal distribution.

    Parameters
    ----------
    calls
        Calls of the task.
    """

    def __init__(self, calls: Calls) -> None:
        forecast = calls.forecast
        self._known: Sequence[float] = forecast.durations_s
        self._count = len(self._known) or forecast.samples
        self._spread = spread_of(forecast)
        mean_s = fmean(self._known) if self._known else forecast.mean_s
        self._log_mean = math.log(max(mean_s, _LEAST_S))

    def sums(self, sizes: Sequence[int], factor: float, chance: random.Random) -> list[float]:
        """Return drawn running times of groups of calls, each group one after the other.

        Parameters
        ----------
        sizes
            Number of calls of each group.
        factor
            Factor of all running times.
        chance
            Random numbers.
        """
        drawn_sizes = [min(size, _MOST_DRAWN) for size in sizes]
        count = sum(drawn_sizes)
        if len(self._known) >= ENOUGH_TO_REPEAT:
            # With n - 1 draws the mean varies as much as the mean of n calls does.
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
    """Return the sum of a number of running times, of which the first were drawn.

    The sum of all differs from its expectation by as many standard deviations as that of the first.

    Parameters
    ----------
    size
        Number of running times, at least as many as were drawn.
    drawn
        The first of them.
    mean
        Expected mean.
    """
    part, count = sum(drawn), len(drawn)
    if size == count:
        return part
    return size * mean + math.sqrt(size / count) * (part - count * mean)


def error_of(calls: Calls) -> float:
    """Return the error that all calls of a task share, as standard deviation of logarithms.

    The error of measured running times is not included.
    """
    if calls.guessed:
        return ERROR_OF_GUESS
    return ERROR_OF_MANIFEST if calls.forecast.source == "manifest" else 0.0
