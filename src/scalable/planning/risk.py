"""Time and cost of a plan's alternatives if the prediction is wrong. No I/O."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from scalable.planning import uncertainty
from scalable.planning.draws import draw_runs
from scalable.planning.knowledge import Knowledge
from scalable.planning.objectives import Point, Problem
from scalable.planning.work import Calls
from scalable.quantiles import quantile

#: Quantile of time and cost that stands for a wrong prediction.
WRONG = 0.8
#: Number of points of a front whose runs are simulated; the others are interpolated.
SIMULATED = 10
#: Number of simulated runs of each of these points.
DRAWS = 60


def quantiles(
    problem: Problem, calls: Sequence[Calls], knowledge: Knowledge, points: Sequence[Point]
) -> list[tuple[float, float]]:
    """Return the 80 % quantiles of time and cost of each point, at least the prediction.

    They come from simulated runs, and those of the time from earlier predictions if there are
    enough. Between simulated points, the ratio of quantile and prediction is interpolated.
    """
    step = max(1.0, (len(points) - 1) / (SIMULATED - 1))
    places = sorted({min(round(i * step), len(points) - 1) for i in range(SIMULATED)})
    ratios = [_ratios(problem, calls, knowledge, points[place]) for place in places]
    found = []
    for position, point in enumerate(points):
        time, cost = _between(places, ratios, position)
        found.append((point.time_s * time, point.cost * cost))
    return found


def _ratios(
    problem: Problem, calls: Sequence[Calls], knowledge: Knowledge, point: Point
) -> tuple[float, float]:
    draws = draw_runs(problem.predicted, calls, point.workers, knowledge, number=DRAWS)
    times = [draw.time_s * problem.overhead for draw in draws]
    costs = [
        problem.cost(point.workers, draw.work, time_s)
        for draw, time_s in zip(draws, times, strict=True)
    ]
    past = knowledge.past_predictions
    if len(past) >= uncertainty.PREDICTIONS_FOR_INTERVAL:
        usual = uncertainty.overhead(past)
        times = [point.time_s * one.ratio / usual for one in past]
    return _ratio(times, point.time_s), _ratio(costs, point.cost)


def _ratio(values: Sequence[float], predicted: float) -> float:
    return max(1.0, quantile(sorted(values), WRONG) / predicted) if predicted > 0 else 1.0


def _between(
    places: Sequence[int], ratios: Sequence[tuple[float, float]], position: int
) -> tuple[float, float]:
    after = bisect.bisect_left(places, position)
    if places[after] == position:
        return ratios[after]
    (low, first), (high, second) = itertools.islice(
        zip(places, ratios, strict=True), after - 1, after + 1
    )
    share = (position - low) / (high - low)
    return (
        first[0] + share * (second[0] - first[0]),
        first[1] + share * (second[1] - first[1]),
    )
