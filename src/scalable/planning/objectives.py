"""The counts on the way from the cheapest to the fastest, and those that serve an aim. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalable.errors import PlanError
from scalable.planning.frontier import Bounds, Workers, trace
from scalable.planning.network import Network
from scalable.planning.request import PlanRequest
from scalable.planning.trimming import fewest, trim
from scalable.units import format_amount, format_duration

#: What "safe" plans beyond the work that is predicted.
HEADROOM = 1.2
#: Points of a front that are worked out; it is drawn and searched by these.
POINTS = 50
#: So many of the states that end in time are shrunk, to see which leads to the fewest workers.
_STARTS = 5


@dataclass(frozen=True)
class Point:
    """Counts, with what they take.

    Attributes
    ----------
    workers
        Of each pool.
    time_s
        Predicted length of the run.
    cost
        Predicted cost while pools have work; see :meth:`Problem.cost`.
    """

    workers: Workers
    time_s: float
    cost: float


@dataclass(frozen=True)
class Problem:
    """Work, bounds and prices.

    Attributes
    ----------
    predicted
        The work as it is predicted.
    planned
        The work as the policy plans it: no less.
    bounds
        Of the counts; the rates are what a worker costs for a second, in ``unit``.
    certain
        What of the planned work is no guess: a deadline that only guesses break is no error.
    overhead
        What runs take over what their calls take.
    released
        Whether idle workers are let go; otherwise all stay until the end.
    """

    predicted: Network
    planned: Network
    bounds: Bounds
    certain: Network | None = None
    overhead: float = 1.0
    released: bool = False
    unit: str = "worker-seconds"

    def point(self, workers: Workers) -> Point:
        """What counts take."""
        return Point(workers, self.time_s(workers), self.cost(workers))

    def time_s(self, workers: Sequence[int]) -> float:
        """Predicted length of the run in seconds."""
        return self.predicted.finish_s(workers) * self.overhead

    def planned_s(self, workers: Sequence[int]) -> float:
        """Length of the run in seconds as the policy plans it."""
        return self.planned.finish_s(workers) * self.overhead

    def cost(self, workers: Sequence[int], work: Sequence[float] | None = None) -> float:
        """What workers cost while their pool has work.

        The work itself; each worker's start; and the time that workers wait, when the queue is
        empty, for the last calls of each stage: half a call each.

        Parameters
        ----------
        workers
            Of each pool.
        work
            Work of each pool over what is expected of it.
        """
        total = 0.0
        network = self.predicted
        for pool, count in enumerate(workers):
            seconds = count * network.startup_s[pool]
            for i in network.stages_of[pool]:
                stage = network.stages[i]
                if stage.calls:
                    waiting = (count - 1 / network.slots[pool]) * stage.work_s / stage.calls / 2
                    all_calls = stage.work_s / network.slots[pool] + waiting
                    seconds += all_calls * self.overhead * (1.0 if work is None else work[pool])
            total += seconds * self.bounds.rates[pool]
        return total

    def held(self, workers: Sequence[int]) -> float:
        """What workers cost that all stay until the end of the run."""
        rate = sum(r * n for r, n in zip(self.bounds.rates, workers, strict=True))
        return rate * self.time_s(workers)

    def spent(self, workers: Sequence[int]) -> float:
        """What is paid in the end."""
        return self.cost(workers) if self.released else self.held(workers)


@dataclass(frozen=True)
class Choice:
    """The counts of an objective.

    Attributes
    ----------
    point
        What was chosen.
    front
        From the least workers to the most that shorten the run; each is faster and costs more
        than the one before.
    least_s
        The least length of the run, as the policy plans it.
    in_time
        Whether the deadline holds.
    """

    point: Point
    front: tuple[Point, ...]
    least_s: float
    in_time: bool


def choose(problem: Problem, request: PlanRequest, deadline_s: float | None) -> Choice:
    """The counts that serve an objective.

    Parameters
    ----------
    problem
        Work, bounds and prices.
    request
        What is asked for.
    deadline_s
        Seconds, or None.

    Raises
    ------
    PlanError
        When no counts keep to the deadline, or to the budget.
    """
    states = trace(problem.planned, problem.bounds)
    least_s = problem.planned_s(states[-1])
    in_time = deadline_s is None or least_s <= deadline_s
    certain = problem.planned if problem.certain is None else problem.certain
    if deadline_s is not None and certain.finish_s(states[-1]) * problem.overhead > deadline_s:
        because, more = _least_because(problem, request, states[-1])
        raise PlanError(
            f"the work cannot end within {format_duration(deadline_s)}: "
            f"the least achievable time is {format_duration(least_s)}{because}",
            hint=f"allow at least {math.ceil(least_s)}s{', or more workers' * more}",
        )
    limit_s = max(deadline_s, least_s) if deadline_s is not None else math.inf
    cheapest, position = _cheapest(problem, states, limit_s)
    fastest = trim(
        problem.planned, problem.bounds, states[-1], least_s / problem.overhead, cheapest
    )
    slower = _spread(states[:position], POINTS // 2)
    slower = [_within(state, problem.bounds.least, cheapest) for state in slower]
    faster = states[position:]

    def points(some: Sequence[Workers]) -> tuple[Point, ...]:
        between = (_within(state, cheapest, fastest) for state in some)
        return _front(problem, [cheapest, *between, fastest])

    every = points(_spread(faster, POINTS))
    within = _affordable(problem, every, request.budget)
    point = {"minimize cost": within[0], "minimize time": within[-1]}.get(request.objective or "")
    if point is None:
        around = points(_around(faster, balanced(within), problem))
        point = balanced(_affordable(problem, around, request.budget))
    chosen = sorted({*(p.workers for p in every), point.workers}, key=sum)
    front = _front(problem, [*slower, *chosen])
    return Choice(point, front, least_s, in_time)


def _least_because(problem: Problem, request: PlanRequest, workers: Workers) -> tuple[str, bool]:
    """What keeps the least time from being less, and whether more workers would make it so."""
    bounds, planned, most = problem.bounds, problem.planned, sum(workers)
    apart = [  # what the pools could have, each on its own
        max(n, min(high, planned.most_useful(pool)))
        for pool, (n, high) in enumerate(zip(workers, bounds.most, strict=True))
    ]
    full = [
        tag
        for tag, count, most in zip(problem.predicted.tags, workers, bounds.most, strict=True)
        if count >= most
    ]
    helps = True
    if bounds.total is not None and most >= bounds.total:
        because = f" with {most} workers, which is all that the target allows"
    elif problem.planned_s(apart) < problem.planned_s(workers):
        because = f" with {most} of the {bounds.total} workers that the target allows"
    elif full:
        because = f" with {most} workers; {', '.join(full)} may have no more"
    else:
        because, helps = f" with {most} workers; more would not shorten the run", False
    if request.policy != "safe":
        return because, helps
    predicted = format_duration(problem.time_s(workers))
    return f"{because} (with the headroom of policy safe; {predicted} is predicted)", helps


def _cheapest(problem: Problem, states: Sequence[Workers], limit_s: float) -> tuple[Workers, int]:
    """The fewest workers that end in time, and the first of the states that does."""
    low, high = 0, len(states) - 1
    while low < high:  # later states are never slower
        middle = (low + high) // 2
        if problem.planned_s(states[middle]) <= limit_s:
            high = middle
        else:
            low = middle + 1
    within_s = limit_s / problem.overhead
    starts = states[low : low + _STARTS]
    # What is cheapest must not have more of anything than what is fastest.
    bounds = replace(problem.bounds, most=states[-1], rates=_worker_rates(problem))
    return fewest(problem.planned, bounds, starts, within_s), low


def _worker_rates(problem: Problem) -> list[float]:
    """What counts as few: the rates, the largest being 1, and where they tie, what waits less."""
    pools = range(len(problem.bounds.rates))
    none = problem.cost([0] * len(pools))
    more = [problem.cost([int(p == pool) for p in pools]) - none for pool in pools]
    highest, most = max(problem.bounds.rates) or 1.0, max(more) or 1.0
    return [
        rate / highest + 1e-6 * cost / most
        for rate, cost in zip(problem.bounds.rates, more, strict=True)
    ]


def _within(workers: Workers, low: Sequence[int], high: Sequence[int]) -> Workers:
    return tuple(max(a, min(n, b)) for n, a, b in zip(workers, low, high, strict=True))


def _spread(states: Sequence[Workers], points: int) -> list[Workers]:
    """Some of the states, evenly; all where there are few."""
    if len(states) <= points:
        return list(states)
    step = (len(states) - 1) / (points - 1)
    return [states[round(i * step)] for i in range(points)]


def _around(states: Sequence[Workers], near: Point, problem: Problem) -> list[Workers]:
    """All states about as fast as a point, and some of the others."""
    low, high = 0, len(states) - 1
    while low < high:
        middle = (low + high) // 2
        if problem.time_s(states[middle]) <= near.time_s:
            high = middle
        else:
            low = middle + 1
    around = math.ceil(len(states) / POINTS)
    first, last = max(0, low - around), low + around + 1
    return [*_spread(states[:first], 3), *states[first:last], *_spread(states[last:], 3)]


def _front(problem: Problem, states: Sequence[Workers]) -> tuple[Point, ...]:
    """The points among states with growing counts that are faster than all before."""
    found: list[Point] = []
    for workers in states:
        point = problem.point(workers)
        if not found or point.time_s < found[-1].time_s * (1 - 1e-9):
            found.append(point)
    return tuple(found)


def _affordable(
    problem: Problem, points: Sequence[Point], budget: float | None
) -> tuple[Point, ...]:
    if budget is None:
        return tuple(points)
    found = tuple(point for point in points if problem.spent(point.workers) <= budget)
    if not found:
        best = min(points, key=lambda p: problem.spent(p.workers))
        least, unit = format_amount(problem.spent(best.workers), problem.unit), problem.unit
        raise PlanError(
            f"the work cannot be done for {budget:g} {unit}: the least that is paid is "
            f"{least} {unit}, for {format_duration(best.time_s)}",
            hint="allow more, or a later deadline",
        )
    return found


def balanced(front: Sequence[Point]) -> Point:
    """The point of a front between its ends that is nearest to both.

    Time and cost are scaled to 0..1 between the ends; nearest to (0, 0) is the balance, ties go to
    fewer workers. An end only where there is nothing between.

    Parameters
    ----------
    front
        At least one point, from the cheapest to the fastest.
    """
    inner = front[1:-1]
    if not inner:
        return front[0]
    slowest, dearest = front[0], front[-1]
    times = slowest.time_s - dearest.time_s or 1.0
    costs = dearest.cost - slowest.cost or 1.0

    def distance(point: Point) -> tuple[float, int]:
        time = (point.time_s - dearest.time_s) / times
        cost = (point.cost - slowest.cost) / costs
        return round(math.hypot(time, cost), 12), sum(point.workers)

    return min(inner, key=distance)
