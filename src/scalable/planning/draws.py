"""Simulated runs, from which confidence and intervals are computed. No I/O.

A run is simulated call by call: the calls of a pool start in the order in which they become ready,
on the slots of workers that connect after their own start-up times. Many calls of a task are
simulated in groups, whose size falls towards the task's end (factoring, Hummel et al.
1992), because the last calls determine when the task ends.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalable.planning.knowledge import Knowledge
from scalable.planning.lengths import Lengths, UsualSpread, error_of
from scalable.planning.network import Network
from scalable.planning.work import Calls

#: Number of simulated runs.
DRAWS = 200
#: Maximum number of groups of calls in one simulated run.
_GROUPS = 600
#: Numbers of slots of one pool to which a run with too many groups is scaled down.
_SCALES = (64, 32, 16, 8, 4, 2)
#: Probability that calls wait only for some calls of the task before them, if the numbers of calls
#: of both tasks allow it. A manifest does not say whether a task waits for all of them.
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
    """Groups of calls of one task: their sizes, the pool, and the positions of tasks before it."""

    calls: Calls
    pool: int
    sizes: Sequence[int]
    before: tuple[int, ...]


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
    usual = UsualSpread.of(calls)
    models = [Lengths(task.calls, usual) for task in tasks]
    moved = any(task.calls.forecast.error for task in tasks)
    draws = []
    for _ in range(number):
        run, spread = knowledge.run_spread.draw(chance), usual.draw(chance)
        # Tasks share most of the error of a transfer, since the place is the same.
        place = chance.gauss(0, 1) if moved else 0.0
        lengths = [
            model.sums(
                t.sizes,
                math.exp(run + place * t.calls.forecast.error + chance.gauss(0, error_of(t.calls))),
                spread,
                chance,
            )
            for t, model in zip(tasks, models, strict=True)
        ]
        starts = [
            _starts(tag, slots[pool], network.startup_s[pool], knowledge, chance)
            for pool, tag in enumerate(network.tags)
        ]
        overlaps = chance.random() < _OVERLAPS
        time_s = _Simulation(tasks, lengths, starts, overlaps=overlaps).length_s()
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
    tasks = [
        _Task(c, pool_of[c.tag], each, _before(c, calls, position))
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
        *,
        overlaps: bool,
    ) -> None:
        self.tasks, self.lengths = tasks, lengths
        self.left = [sum(task.sizes) for task in tasks]
        self.waits = [len(task.before) for task in tasks]
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in starts]
        self.idle = [0] * len(starts)
        #: Tasks that wait for all calls of a task, and tasks of which each call waits for one call.
        self.after: list[list[int]] = [[] for _ in tasks]
        self.follows: list[list[int]] = [[] for _ in tasks]
        for place, task in enumerate(tasks):
            for other in task.before:
                one_by_one = overlaps and len(task.before) == 1 and _one_by_one(tasks[other], task)
                (self.follows if one_by_one else self.after)[other].append(place)
        #: Time, task and group of each end. Where a slot connects, the task is -1, and the pool's
        #: position stands in place of the group.
        self.events = [(at, -1, pool) for pool, each in enumerate(starts) for at in each]
        heapq.heapify(self.events)

    def length_s(self) -> float:
        """Return the seconds until all calls have ended."""
        for place, task in enumerate(self.tasks):
            if not task.before:
                self.queues[task.pool].extend((place, group) for group in range(len(task.sizes)))
        events, now, unfinished = self.events, 0.0, len(self.tasks)
        while unfinished and events:
            now, place, group = heapq.heappop(events)
            pool = group
            if place >= 0:
                task = self.tasks[place]
                pool = task.pool
                self.left[place] -= task.sizes[group]
                for other in self.follows[place]:
                    self.queue(other, [group], now)
                if not self.left[place]:
                    unfinished -= 1
                    self.release(place, now)
            self.idle[pool] += 1
            self.dispatch(pool, now)
        return math.inf if unfinished else now

    def release(self, place: int, now: float) -> None:
        """Queue the tasks that waited only for a task which has ended."""
        for other in self.after[place]:
            self.waits[other] -= 1
            if not self.waits[other]:
                self.queue(other, range(len(self.tasks[other].sizes)), now)

    def queue(self, place: int, groups: Iterable[int], now: float) -> None:
        """Queue groups of a task, and start as many of them as there are idle slots."""
        pool = self.tasks[place].pool
        self.queues[pool].extend((place, group) for group in groups)
        self.dispatch(pool, now)

    def dispatch(self, pool: int, now: float) -> None:
        """Start queued groups on idle slots."""
        queue = self.queues[pool]
        while queue and self.idle[pool]:
            place, group = queue.popleft()
            self.idle[pool] -= 1
            heapq.heappush(self.events, (now + self.lengths[place][group], place, group))


def _one_by_one(earlier: _Task, later: _Task) -> bool:
    """Return whether each call of a task may wait for one call of the task before it."""
    return earlier.sizes == later.sizes and sum(later.sizes) > 1
