"""Transfer of running times from one place to another by a learned speed ratio. No I/O.

The logarithm of a task's running times on two places differs by the ratio of the places and by a
deviation of the task. Both have normal priors with mean 0; calls of the same tasks on both places
narrow them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scalable.planning.variation import ASSUMED_VARIATION

#: Standard deviation of the logarithm of the speed ratio of two places that is assumed before any
#: task has calls on both, and that of a task's deviation from the ratio. Both are assumptions.
ERROR_OF_PLACE, ERROR_OF_TASK = 0.5, 0.25
#: Number of outcomes of transfers that the assumption about the ratio is worth.
WORTH_OF_ASSUMPTION = 3
#: Assumed standard deviation of the logarithms of a task's running times, worth one call.
_USUAL_SPREAD = 0.25
#: Smallest running time in seconds, since shorter ones say nothing about a place.
_LEAST_S = 1e-3


#: Component and name of a task.
Task = tuple[str, str]


@dataclass(frozen=True)
class Transfer:
    """Transfer of one task's running times from another place to the planned one.

    Attributes
    ----------
    factor
        Factor of the other place's running times.
    error
        Standard deviation of the logarithm of the error that remains.
    """

    factor: float = 1.0
    error: float = 0.0


def transfers(
    here: Mapping[Task, Sequence[float]],
    there: Mapping[Task, Sequence[float]],
    error_of_place: float = ERROR_OF_PLACE,
) -> dict[Task, Transfer]:
    """Return the transfer of each task that was measured on the other place.

    Parameters
    ----------
    here, there
        Task -> measured running times in seconds, on the planned place and on the other one.
    error_of_place
        Standard deviation of the logarithm of the speed ratio before any task has calls on both.
    """
    compared = {
        task: _compared(here[task], lengths)
        for task, lengths in there.items()
        if lengths and here.get(task)
    }
    found = {}
    for task, lengths in there.items():
        if not lengths:
            continue
        ratio, variance = _ratio(
            [c for name, c in compared.items() if name != task], error_of_place
        )
        error = math.sqrt(variance + ERROR_OF_TASK**2)
        if task in compared:
            # The task's own calls on the planned place count against what the other place says.
            own = 1 / _sampling(here[task])
            other = 1 / (error**2 + _sampling(lengths))
            weight = own / (own + other)
            ratio = weight * compared[task][0] + (1 - weight) * ratio
            error *= 1 - weight
        found[task] = Transfer(math.exp(ratio), error)
    return found


def learned_error(log_ratios: Sequence[float]) -> float:
    """Return the error of the speed ratio that earlier transfers show, with the assumed one.

    Parameters
    ----------
    log_ratios
        Logarithms of actual / predicted length of runs whose running times were transferred.
    """
    squares = WORTH_OF_ASSUMPTION * ERROR_OF_PLACE**2 + sum(log**2 for log in log_ratios)
    return math.sqrt(squares / (WORTH_OF_ASSUMPTION + len(log_ratios)))


def _ratio(compared: Sequence[tuple[float, float]], error_of_place: float) -> tuple[float, float]:
    """Return mean and variance of the logarithm of the speed ratio of two places."""
    precision = 1 / error_of_place**2 + sum(1 / variance for _, variance in compared)
    return sum(ratio / variance for ratio, variance in compared) / precision, 1 / precision


def _compared(here: Sequence[float], there: Sequence[float]) -> tuple[float, float]:
    """Return a task's logarithm of running time here / there, and its variance as a ratio."""
    ratio = fmean(_logs(here)) - fmean(_logs(there))
    return ratio, _sampling(here) + _sampling(there) + ERROR_OF_TASK**2


def _sampling(lengths: Sequence[float]) -> float:
    """Return the variance of the mean logarithm of running times, with that between runs."""
    logs = _logs(lengths)
    mean = fmean(logs)
    spread = (_USUAL_SPREAD**2 + sum((log - mean) ** 2 for log in logs)) / len(logs)
    return spread / len(logs) + ASSUMED_VARIATION**2


def _logs(lengths: Sequence[float]) -> list[float]:
    return [math.log(max(length, _LEAST_S)) for length in lengths]
