"""Choice of worker counts for an objective: minimize time or cost, or balance both."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scalable.errors import PlanError
from scalable.planning.billing import Always, Billing
from scalable.planning.frontier import SAME, CountBounds, Workers, trace
from scalable.planning.network import Network
from scalable.planning.request import PlanRequest
from scalable.units import format_amount, format_duration

logger = logging.getLogger("scalable.planning")

#: Factor by which policy "safe" multiplies the predicted work.
HEADROOM = 1.2
#: Number of evaluated points of a Pareto front, from the cheapest to the fastest counts.
POINTS = 50
#: Unit of costs without prices.
WORKER_SECONDS = "worker-seconds"
#: Number of worker counts within the deadline from which the search for fewer workers starts.
_STARTS = 5


@dataclass(frozen=True)
class Point:
    """Worker counts with their predicted time and cost."""

    workers: Workers
    time_s: float
    #: See :meth:`Problem.cost`.
    cost: float


@dataclass(frozen=True)
class Problem:
    """Input of a choice of worker counts: work, bounds and prices."""

    #: Stages of the predicted work.
    predicted: Network
    #: Stages of the work that the policy plans for, at least the predicted work.
    planned: Network
    #: Bounds of the counts. Their rates are costs of one worker-second in ``unit``.
    bounds: CountBounds
    #: Planned work without guessed tasks, or None for ``planned``. It is not an error if only
    #: guessed work exceeds the deadline.
    certain: Network | None = None
    #: Duration of a run / duration of its tasks alone.
    overhead: float = 1.0
    #: True if idle workers are released. Otherwise all workers stay until the end.
    released: bool = False
    unit: str = WORKER_SECONDS
    #: Billing of each pool's machines. None to count plain worker-seconds.
    billing: Sequence[Billing] | None = None
    always: Always = Always()  # noqa: RUF009 - frozen

    def point(self, workers: Workers) -> Point:
        return Point(workers, self.time_s(workers), self.cost(workers))

    def time_s(self, workers: Sequence[int]) -> float:
        return self.predicted.finish_s(workers) * self.overhead

    def planned_s(self, workers: Sequence[int]) -> float:
        """Return the duration of the run for the work that the policy plans for."""
        return self.planned.finish_s(workers) * self.overhead

    def cost(
        self,
        workers: Sequence[int],
        work: Sequence[float] | None = None,
        run_s: float | None = None,
    ) -> float:
        """Return the cost if idle workers are released. ``work`` scales each pool's work."""
        total = self.cost_of_pools(workers, work)
        if self.always.rate:
            total += self.always.cost(self.time_s(workers) if run_s is None else run_s)
        return total

    def cost_of_pools(self, workers: Sequence[int], work: Sequence[float] | None = None) -> float:
        total = 0.0
        network = self.predicted
        for pool, count in enumerate(workers):
            seconds = count * network.startup_s[pool]
            for i in network.stages_of[pool]:
                stage = network.stages[i]
                if stage.calls:
                    # Each worker waits half a task for the last tasks of the stage.
                    waiting = (count - 1 / network.slots[pool]) * stage.work_s / stage.calls / 2
                    all_calls = stage.work_s / network.slots[pool] + waiting
                    seconds += all_calls * self.overhead * (1.0 if work is None else work[pool])
            if self.billing is not None and count:
                terms = self.billing[pool]
                seconds = terms.billed_parts_s(seconds, count) * terms.paid_units(count) / count
            total += seconds * self.bounds.rates[pool]
        return total

    def held(self, workers: Sequence[int], run_s: float | None = None) -> float:
        """Return the cost if all workers stay until the end of the run."""
        length_s = self.time_s(workers) if run_s is None else run_s
        if self.billing is None:
            rate = sum(r * n for r, n in zip(self.bounds.rates, workers, strict=True))
            return rate * length_s + self.always.cost(length_s)
        total = self.always.cost(length_s)
        for rate, count, terms in zip(self.bounds.rates, workers, self.billing, strict=True):
            if count:
                total += rate * terms.paid_units(count) * terms.billed_s(length_s)
        return total

    def spent(
        self,
        workers: Sequence[int],
        work: Sequence[float] | None = None,
        run_s: float | None = None,
    ) -> float:
        """Return the cost to pay: :meth:`held`, or :meth:`cost` if idle workers are released."""
        held = self.held(workers, run_s)
        # The cost of waiting is an estimate, but released workers never cost more than kept ones.
        return min(self.cost(workers, work, run_s), held) if self.released else held


@dataclass(frozen=True)
class Choice:
    """Worker counts chosen for an objective, and the alternatives."""

    point: Point
    #: Points from the fewest to the most useful workers, each faster and dearer than the last.
    front: tuple[Point, ...]
    #: Shortest planned duration of the run.
    least_s: float
    #: True if ``least_s`` is within the deadline.
    in_time: bool
    #: True if the cheapest counts are within the budget.
    in_budget: bool = True


def choose(problem: Problem, request: PlanRequest, deadline_s: float | None) -> Choice:
    """Choose the worker counts for an objective.
    Raises PlanError if no counts meet the deadline or the budget, unless only guessed work exceeds
    it.
    """
    states = trace(problem.planned, problem.bounds)
    least_s = problem.planned_s(states[-1])
    in_time = deadline_s is None or least_s <= deadline_s
    certain = problem.planned if problem.certain is None else problem.certain
    if deadline_s is not None and certain.finish_s(states[-1]) * problem.overhead > deadline_s:
        because, more = _least_because(problem, request, states[-1])
        bold = request.policy == "safe" and problem.time_s(states[-1]) <= deadline_s
        raise PlanError(
            f"the work cannot finish within {format_duration(deadline_s)}: "
            f"the shortest possible time is {format_duration(least_s)}{because}",
            hint=f"allow at least {_deadline(least_s)}{' or more workers' * more}"
            + ", or policy aggressive, which has no headroom" * bold,
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
    compared = every
    if request.least_cost or (request.objective == "minimize time" and request.budget is not None):
        bounds = replace(problem.bounds, rates=_worker_rates(problem))
        found = candidates(problem.planned, bounds, states, position)
        limit = limit_s * (1 + SAME)
        compared = tuple(problem.point(n) for n in found if problem.planned_s(n) <= limit)
    within = _affordable(problem, compared, request.budget)
    if in_budget := bool(within):
        point = _pick(problem, request, within)
    elif _work_s(certain) < _work_s(problem.planned):  # only a guess exceeds the budget
        point = min(compared, key=lambda p: problem.spent(p.workers))
    else:
        raise _too_dear(problem, request, compared)
    if request.objective == "balance" and in_budget:
        around = points(_around(faster, point, problem))
        point = balanced(_affordable(problem, around, request.budget) or [point])
    chosen = sorted({*(p.workers for p in every), point.workers}, key=sum)
    front = _front(problem, [*slower, *chosen], point)
    logger.debug(
        "%s (policy %s): %s workers of %s, %.4g s, cost %.4g; %d of %d points within the budget",
        *(request.objective, request.policy, point.workers, problem.predicted.tags),
        *(point.time_s, point.cost, len(within), len(every)),
    )
    return Choice(point, front, least_s, in_time, in_budget)


def _deadline(least_s: float) -> str:
    """Return a sufficient ``--deadline``, in seconds up to 120 s and otherwise in minutes."""
    return f"{math.ceil(least_s)}s" if least_s <= 120 else f"{math.ceil(least_s / 60)}m"


def _pick(problem: Problem, request: PlanRequest, within: Sequence[Point]) -> Point:
    """Return the point for the objective, from points ordered from cheapest to fastest."""
    if request.objective == "balance":
        return balanced(within)
    if request.objective == "minimize time":
        least_s = min(p.time_s for p in within) * (1 + SAME)
        within = [p for p in within if p.time_s <= least_s]
        if request.budget is None:
            return within[0]
    elif not request.least_cost:
        return within[0]
    return min(within, key=lambda p: (problem.spent(p.workers), sum(p.workers), p.time_s))


def _work_s(network: Network) -> float:
    return sum(stage.work_s for stage in network.stages)


def _least_because(problem: Problem, request: PlanRequest, workers: Workers) -> tuple[str, bool]:
    """Return why the run cannot be shorter, and whether more workers would shorten it."""
    bounds, planned, most = problem.bounds, problem.planned, sum(workers)
    apart = [  # useful count of each pool without the common total
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
        because = f" with {most} workers, the maximum of the target"
    elif problem.planned_s(apart) < problem.planned_s(workers):
        because = f" with {most} of at most {bounds.total} workers of the target"
    elif full:
        because = f" with {most} workers; pools at their maximum: {', '.join(full)}"
    else:
        because, helps = f" with {most} workers; more workers would not shorten the run", False
    if request.policy != "safe":
        return because, helps
    predicted = format_duration(problem.time_s(workers))
    return f"{because} (includes the headroom of policy safe; the prediction is {predicted})", helps


def _cheapest(problem: Problem, states: Sequence[Workers], limit_s: float) -> tuple[Workers, int]:
    """Return the cheapest counts within the limit, and the index of the first state within it."""
    low, high = 0, len(states) - 1
    while low < high:  # later states are never slower
        middle = (low + high) // 2
        if problem.planned_s(states[middle]) <= limit_s:
            high = middle
        else:
            low = middle + 1
    within_s = limit_s / problem.overhead
    starts = states[low : low + _STARTS]
    # The cheapest counts must not exceed the fastest ones, or the front would not grow.
    bounds = replace(problem.bounds, most=states[-1], rates=_worker_rates(problem))
    return fewest(problem.planned, bounds, starts, within_s), low


def _worker_rates(problem: Problem) -> list[float]:
    """Return each pool's relative price, plus a tiny amount for the cost of its idle time."""
    pools = range(len(problem.bounds.rates))
    none = problem.cost_of_pools([0] * len(pools))
    more = [problem.cost_of_pools([int(p == pool) for p in pools]) - none for pool in pools]
    highest, most = max(problem.bounds.rates) or 1.0, max(more) or 1.0
    return [
        rate / highest + 1e-6 * cost / most
        for rate, cost in zip(problem.bounds.rates, more, strict=True)
    ]


def _within(workers: Workers, low: Sequence[int], high: Sequence[int]) -> Workers:
    return tuple(max(a, min(n, b)) for n, a, b in zip(workers, low, high, strict=True))


def _spread(states: Sequence[Workers], points: int) -> list[Workers]:
    if len(states) <= points:
        return list(states)
    step = (len(states) - 1) / (points - 1)
    return [states[round(i * step)] for i in range(points)]


def _around(states: Sequence[Workers], near: Point, problem: Problem) -> list[Workers]:
    """Return all counts about as fast as ``near``, and a few faster and slower ones."""
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


def _front(
    problem: Problem, states: Sequence[Workers], kept: Point | None = None
) -> tuple[Point, ...]:
    """Return ``kept`` and a point for each state that is faster than all earlier ones."""
    found: list[Point] = []
    for workers in states:
        point = problem.point(workers)
        if not found or point.time_s < found[-1].time_s * (1 - 1e-9):
            found.append(point)
    if kept is not None and kept not in found:
        found = [p for p in found if abs(p.time_s - kept.time_s) > kept.time_s * 1e-9]
        found = sorted([*found, kept], key=lambda p: -p.time_s)
    return tuple(found)


def _affordable(
    problem: Problem, points: Sequence[Point], budget: float | None
) -> tuple[Point, ...]:
    if budget is None:
        return tuple(points)
    return tuple(point for point in points if problem.spent(point.workers) <= budget)


def _too_dear(problem: Problem, request: PlanRequest, points: Sequence[Point]) -> PlanError:
    best = min(points, key=lambda p: problem.spent(p.workers))
    least, unit = format_amount(problem.spent(best.workers), problem.unit), problem.unit
    by = "" if request.deadline_s is None else " within the deadline"
    return PlanError(
        f"the work cannot be done within the budget of {request.budget:g} {unit}: the cheapest "
        f"plan{by} costs {least} {unit} and takes {format_duration(best.time_s)}",
        hint="raise the budget or the deadline",
    )


def balanced(front: Sequence[Point]) -> Point:
    """Return the inner point of a front that is nearest to both of its ends.

    ``front`` is ordered from the slowest point to the fastest. A point is left out if a faster one
    costs no more. Time and cost are scaled to 0 and 1 at the ends. Of equally near points, the one
    with the fewest workers is returned. Without inner points, it is the cheapest point.
    """
    front = [
        point
        for number, point in enumerate(front)
        if all(faster.cost > point.cost * (1 + SAME) for faster in front[number + 1 :])
    ]
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


# Candidates ---------------------------------------------------------------------------------------

#: Maximum number of counts that are all compared.
ALL = 2000
#: Number of times for which the fewest workers are searched if there are too many counts.
TIMES = 12
#: Number of compared counts between the cheapest and the fastest if there are too many counts.
STATES = 100


def candidates(
    network: Network, bounds: CountBounds, states: Sequence[Workers], position: int
) -> list[Workers]:
    """Return the counts to compare. Large problems leave out those before ``states[position]``."""
    ranges = [
        range(least, min(most, max(least, network.most_useful(pool))) + 1)
        for pool, (least, most) in enumerate(zip(bounds.least, bounds.most, strict=True))
    ]
    if math.prod(map(len, ranges)) <= ALL:
        return list(_allowed(ranges, bounds))
    searched = [
        fewest(network, bounds, [states[i]], network.finish_s(states[i]) * (1 + SAME))
        for i in _places(states, TIMES, position)
    ]
    return [*searched, *(states[i] for i in _places(states, STATES, position))]


def _places(states: Sequence[Workers], number: int, first: int) -> list[int]:
    """Return evenly spaced indices from ``first`` on, and the last index."""
    step = max(1, len(states) // number)
    return [i for i in (*range(0, len(states) - 1, step), len(states) - 1) if i >= first]


def _allowed(ranges: Sequence[range], bounds: CountBounds) -> Iterator[Workers]:
    for counts in itertools.product(*ranges):
        if bounds.least_total <= sum(counts) and (
            bounds.total is None or sum(counts) <= bounds.total
        ):
            yield counts


# Trimming -----------------------------------------------------------------------------------------

#: Number of computed stage durations after which a search stops.
_LOOKS = 20_000


def trim(
    network: Network, bounds: CountBounds, workers: Workers, within_s: float, least: Sequence[int]
) -> Workers:
    """Shrink counts until no single pool can shrink further within the time limit."""
    return _Trimming(network, bounds, within_s * (1 + SAME), least).shrink(workers)


def fewest(
    network: Network, bounds: CountBounds, starts: Sequence[Workers], within_s: float
) -> Workers:
    """Return the cheapest counts within a time limit that a bounded search finds.
    It shrinks the pools of each start, the most promising start first. Then it exchanges workers
    between pools while this lowers the cost. In small graphs it tries every useful count.
    """
    trimming = _Trimming(network, bounds, within_s * (1 + SAME), bounds.least)
    trimming.looks = _LOOKS
    shrunk = [trimming.shrink(starts[0])]
    shrunk += [trimming.shrink(start) for start in starts[1:] if trimming.looks > 0]
    found = [trimming.exchange(counts) for counts in dict.fromkeys(shrunk)]
    return min(found, key=trimming.rate)


@dataclass
class _Trimming:
    network: Network
    bounds: CountBounds
    limit: float
    least: Sequence[int]
    looks: int = 0

    def shrink(self, workers: Workers) -> Workers:
        """Shrink expensive pools first, then cheap pools first, and return the cheaper result."""
        saving = [rate * count for rate, count in zip(self.bounds.rates, workers, strict=True)]
        dearest = sorted(range(len(workers)), key=lambda pool: -saving[pool])
        found = [self._shrunk(workers, order) for order in (dearest, dearest[::-1])]
        return min(found, key=self.rate)

    def exchange(self, workers: Workers) -> Workers:
        """Enlarge one pool at a time if the others can then shrink by more than it costs."""
        improved = True
        while improved:
            improved = False
            for pool in range(len(workers)):
                for enlarged in self._enlarged(workers, pool):
                    if self.looks <= 0:
                        return workers
                    found = self.shrink(enlarged)
                    if self.rate(found) < self.rate(workers) - SAME:
                        workers, improved = found, True
                        break
        return workers

    def _enlarged(self, workers: Workers, pool: int) -> Iterator[Workers]:
        """Yield larger counts of one pool, up to the cost that the others could save."""
        network, bounds = self.network, self.bounds
        own = [network.stages[i] for i in network.stages_of[pool]]
        rate = bounds.rates[pool]
        spare = self.rate(workers) - self.rate(self.least) - rate * workers[pool]
        most = min(bounds.most[pool], network.most_useful(pool))
        if bounds.total is not None:
            most = min(most, bounds.total - sum(workers) + workers[pool])
        if rate:
            most = min(most, workers[pool] + int((spare + rate * self.least[pool]) / rate))
        before = [network.stage_s(stage, workers[pool]) for stage in own]
        for count in range(workers[pool] + 1, most + 1):
            now = [network.stage_s(stage, count) for stage in own]
            if now != before:
                yield (*workers[:pool], count, *workers[pool + 1 :])
            before = now

    def _shrunk(self, workers: Workers, order: Sequence[int]) -> Workers:
        network = self.network
        counts, times = list(workers), network.times_s(workers)
        spare = sum(counts) - self.bounds.least_total
        for pool in order:
            high, own = counts[pool], network.stages_of[pool]
            low, step = max(self.least[pool], high - max(0, spare)), 1
            kept = [times[i] for i in own]
            while low < high:  # fewer workers are never faster: gallop, then bisect
                tried = max(low, high - step) if step else (low + high) // 2
                counts[pool] = tried
                for i in own:
                    times[i] = network.stage_s(network.stages[i], tried)
                self.looks -= len(times)
                if network.compose(counts, times)[0] <= self.limit:
                    high, step, kept = tried, 4 * step, [times[i] for i in own]
                else:
                    low, step = tried + 1, 0
            spare -= workers[pool] - high
            counts[pool] = high
            for i, time_s in zip(own, kept, strict=True):
                times[i] = time_s
        return tuple(counts)

    def rate(self, workers: Sequence[int]) -> float:
        return sum(rate * count for rate, count in zip(self.bounds.rates, workers, strict=True))
