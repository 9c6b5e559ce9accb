"""Scaler for users who measure the load of their workers themselves."""

from __future__ import annotations

import heapq
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from scalable.scaling.decisions import ScaleDecision
from scalable.scaling.task_model import UNKNOWN_DURATION_S
from scalable.units import seconds_of

logger = logging.getLogger("scalable.scaling")

#: Seconds that the pending tasks should take, unless the longest task takes longer. Finishing
#: sooner is not worth starting workers for. Dask's Adaptive has the same target.
TARGET_S = 5.0
#: Number of the latest durations that are kept for each tag.
KEPT_DURATIONS = 200
#: Number of the latest decisions that are kept.
KEPT_DECISIONS = 1000
#: Maximum accepted duration of a task in seconds. Sums of longer durations would lose precision.
LONGEST_CALL_S = 1e12
_EPSILON = 1e-9


@dataclass(frozen=True)
class _PoolLoad:
    tag: str
    #: Seconds of each pending task, or None if the caller gives none.
    said: tuple[float | None, ...]
    active: int
    #: Seconds of recently finished tasks.
    ended: tuple[float, ...]

    @property
    def pending(self) -> int:
        return len(self.said)

    @property
    def durations(self) -> tuple[float, ...]:
        """Seconds of each pending task, estimated if unknown. Empty if all are unknown."""
        told = [length for length in self.said if length is not None]
        if not (self.ended or told):
            return ()
        typical = fmean(self.ended or told)
        return tuple(typical if length is None else length for length in self.said)


class AdaptiveScaler:
    """Scaler that computes worker counts from task and worker numbers, without a cluster.

    The load of a tag is its number of pending tasks divided by its number of active workers. Within
    the bounds, the worker count changes only if the load is above ``scale_up_threshold`` or below
    ``scale_down_threshold``. The new count brings the load to ``scale_up_threshold``. If
    durations are known, the new count finishes the pending tasks in about 5 s instead, or in the
    time of the longest task if that is more. A second evaluation with the decided counts and the
    same tasks changes nothing.

    Parameters
    ----------
    min_workers, max_workers
        Minimum or maximum number of workers of each tag. Tags without an entry have minimum 0 and
        no maximum. Both may be changed at any time.
    scale_up_threshold, scale_down_threshold
        Loads (pending tasks per active worker) above and below which the count changes.
    cooldown_seconds
        Minimum time between two changes of a tag's count, in any direction, in seconds or as a
        string such as ``"5 min"``. A count outside bounds that were changed since then moves to the
        nearest bound at once.
    clock
        Function that returns monotonic seconds.

    Attributes
    ----------
    decision_history
        The last 1,000 decisions, the oldest first.

    Raises
    ------
    ValueError
        If a minimum exceeds its maximum, the thresholds are not ascending, or a number is invalid.
    """

    def __init__(
        self,
        min_workers: Mapping[str, int] | None = None,
        max_workers: Mapping[str, int] | None = None,
        scale_up_threshold: float = 0.8,
        scale_down_threshold: float = 0.2,
        cooldown_seconds: str | float = 60,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.min_workers = dict(min_workers or {})
        self.max_workers = dict(max_workers or {})
        if not 0 <= scale_down_threshold < scale_up_threshold:
            raise ValueError(
                f"scale_down_threshold {scale_down_threshold} and scale_up_threshold "
                f"{scale_up_threshold} are not an ascending range above 0"
            )
        self.cooldown_seconds = seconds_of("cooldown_seconds", cooldown_seconds)
        if not self.cooldown_seconds >= 0:
            raise ValueError(f"cooldown_seconds {cooldown_seconds} is negative")
        for tag in self.min_workers.keys() | self.max_workers.keys():
            low, high = self._bounds(tag)
            if not (_whole(low) and (_whole(high) or high == math.inf) and 0 <= low <= high):
                raise ValueError(f"{tag!r}: minimum {low} and maximum {high} are not a valid range")
        self.scale_up_threshold = scale_up_threshold
        self.scale_down_threshold = scale_down_threshold
        self.decision_history: list[ScaleDecision] = []
        self._clock = clock
        #: Time of the last change, and the bounds at that time, by tag.
        self._changed: dict[str, tuple[float, tuple[int, float]]] = {}
        self._durations: dict[str, deque[float]] = {}
        #: True if any task has finished.
        self._ended = False
        #: Pending tasks at the last evaluation, and the time since which none has finished, by tag.
        self._unended: dict[str, tuple[int, float]] = {}
        self._reliability = Reliability()
        #: Tags that ``active_workers`` ever contained, and the last decided counts of other tags.
        #: Without these, each decision would add the first workers again.
        self._named: set[str] = set()
        self._assumed: dict[str, int] = {}

    def reset_cooldown(self) -> None:
        """End all cooldowns, so that the next evaluation may change any pool."""
        self._changed.clear()

    def evaluate(
        self,
        pending_tasks: Iterable[Mapping[str, Any]],
        active_workers: Mapping[str, int],
        recent_completions: Iterable[Mapping[str, Any]] | None = None,
    ) -> ScaleDecision:
        """Return the decision for the current load, and start the cooldown of each changed tag.

        Parameters
        ----------
        pending_tasks
            One mapping for each task that is queued or runs. Keys: ``tag`` and, if known,
            ``duration`` in seconds.
        active_workers
            Number of connected or starting workers of each tag. Tags that were in an
            earlier mapping and are missing now have none. Other missing tags have the count of the
            last decision.
        recent_completions
            One mapping for each task that finished since the last evaluation. Keys: ``tag`` and, if
            known, ``duration_s``. The scaler keeps the last 200 durations of each tag.

        Raises
        ------
        ValueError
            If a mapping has no tag, or a count or duration is invalid. The scaler's state is then
            unchanged.
        """
        active = {**self._assumed, **active_workers}
        loads = self._loads(list(pending_tasks), active, list(recent_completions or ()))
        self._named.update(active_workers)
        now = self._clock()
        after: dict[str, int] = {}
        reasons: list[str] = []
        for load in loads:
            after[load.tag], reason = self._count(load, now)
            if reason:
                reasons.append(f"{load.tag}: {reason}")
        changes = {load.tag: after[load.tag] - load.active for load in loads}
        self._assumed = {tag: count for tag, count in after.items() if tag not in self._named}
        for tag, change in changes.items():
            if change:
                self._changed[tag] = (now, self._bounds(tag))
        self._reliability.look(sum(load.pending for load in loads), now)
        pools = [
            Pending(load.said, load.ended, after[load.tag], self._assumed_s(load, now))
            for load in loads
        ]
        seconds, confidence = predict(pools)
        # A prediction from assumed durations is no evidence for predictions from known ones.
        if seconds and all(pool.known for pool in pools):
            self._reliability.note(seconds, now)
            confidence = self._reliability.adjusted(confidence)
        decision = ScaleDecision(
            workers_to_add={tag: change for tag, change in changes.items() if change > 0},
            workers_to_remove={tag: -change for tag, change in changes.items() if change < 0},
            reasoning="; ".join(reasons) or "all loads are between the thresholds",
            confidence=confidence,
            predicted_completion_time=seconds,
            timestamp=time.time(),
            active_workers={load.tag: load.active for load in loads},
        )
        self.decision_history.append(decision)
        del self.decision_history[:-KEPT_DECISIONS]
        if decision.has_changes:
            logger.debug("changes of pools %s: %s", decision.changes, decision.reasoning)
        return decision

    def _loads(
        self,
        pending: Sequence[Mapping[str, Any]],
        active: Mapping[str, int],
        ended: Sequence[Mapping[str, Any]],
    ) -> list[_PoolLoad]:
        for tag, count in active.items():
            if not _whole(count) or count < 0:
                raise ValueError(f"{tag!r}: {count!r} is not a valid number of active workers")
        rows = [(_tag(task, "pending task"), _seconds(task, "duration")) for task in pending]
        lengths = [(_tag(row, "completion"), _seconds(row, "duration_s")) for row in ended]
        self._ended = self._ended or bool(lengths)
        for tag, length in lengths:
            self._unended.pop(tag, None)
            if length is not None:
                self._durations.setdefault(tag, deque(maxlen=KEPT_DURATIONS)).append(length)
        said: dict[str, list[float | None]] = {}
        for tag, length in rows:
            said.setdefault(tag, []).append(length)
        tags = dict.fromkeys([*active, *said, *self.min_workers])
        ended_of = {tag: tuple(self._durations.get(tag, ())) for tag in tags}
        return [
            _PoolLoad(tag, tuple(said.get(tag, ())), active.get(tag, 0), ended_of[tag])
            for tag in tags
        ]

    def _count(self, load: _PoolLoad, now: float) -> tuple[int, str]:
        """Return the new worker count of a tag, and the reason, which may be empty."""
        low, high = self._bounds(load.tag)
        wished = self._wished(load)
        count = int(max(low, min(wished, high)))
        shown = f"{load.pending} pending on {load.active} workers"
        if count == load.active:
            if count != wished:
                return count, f"{shown}, bounds {low} .. {high:g}"
            over = load.pending > (self.scale_up_threshold + _EPSILON) * load.active
            work = sum(load.durations)
            return count, f"{shown}, enough for {work:.3g} worker-seconds" if over else ""
        if not low <= load.active <= high:
            if not self._cools(load.tag, now):
                return count, f"{shown}, bounds {low} .. {high:g}"
            if self._changed[load.tag][1] != (low, high):
                nearest = int(max(low, min(load.active, high)))
                return nearest, f"{shown}, new bounds {low} .. {high:g}"
        if self._cools(load.tag, now):
            return load.active, f"{shown}, but the cooldown of the last change has not ended"
        return count, shown + ("" if count == wished else f", bounds {low} .. {high:g}")

    def _wished(self, load: _PoolLoad) -> int:
        """Return the worker count for the load, without bounds and cooldown."""
        needed = math.ceil(load.pending / self.scale_up_threshold - _EPSILON)
        if durations := load.durations:
            work, longest = sum(durations), max(durations)
            needed = min(load.pending, math.ceil(work / max(TARGET_S, longest) - _EPSILON))
            needed = max(needed, 1)
        if load.pending > (self.scale_up_threshold + _EPSILON) * load.active:
            return max(load.active, needed)
        if load.pending < (self.scale_down_threshold - _EPSILON) * load.active:
            return min(load.active, needed)
        return load.active

    def _cools(self, tag: str, now: float) -> bool:
        return tag in self._changed and now - self._changed[tag][0] < self.cooldown_seconds

    def _assumed_s(self, load: _PoolLoad, now: float) -> float | None:
        """Record progress, and return the duration to assume if none is known."""
        # None if no task has finished, and none of the tag can be running. A task that has run for
        # some time is expected to run for as long again.
        if not (load.pending and load.active):
            self._unended.pop(load.tag, None)
            return UNKNOWN_DURATION_S if self._ended else None
        before, since = self._unended.get(load.tag, (load.pending, now))
        if load.pending < before:
            since = now
        self._unended[load.tag] = (load.pending, since)
        return max(UNKNOWN_DURATION_S, 2 * (now - since))

    def _bounds(self, tag: str) -> tuple[int, float]:
        return self.min_workers.get(tag, 0), self.max_workers.get(tag, math.inf)


def _whole(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool)


def _tag(row: Mapping[str, Any], what: str) -> str:
    tag = row.get("tag") if isinstance(row, Mapping) else None
    if not isinstance(tag, str):
        raise ValueError(f"a {what} needs a 'tag': {row!r}")  # noqa: TRY004 - of a mapping
    return tag


def _seconds(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= LONGEST_CALL_S:
        raise ValueError(f"{key} {value!r} is not a valid number of seconds: {dict(row)!r}")
    return float(value)


# Completion ---------------------------------------------------------------------------------------

#: A prediction counts as correct if actual time / predicted time is in this range.
BAND = (0.8, 1.25)
#: Number of tasks, at the end of a queue, that are placed one by one. Earlier tasks are spread
#: evenly over the workers.
PLACED_CALLS = 1000
#: Maximum number of placements of tasks for one prediction.
PLACEMENTS = 6_000
#: Assumed standard deviation of the logarithms of durations, and the number of finished tasks that
#: weigh as much as this assumption.
ASSUMED_SPREAD, ASSUMED_WEIGHT = 0.6, 1.0
#: Assumed error of durations that the caller states: standard deviation of their logarithms.
STATED_SPREAD = 0.5
#: Error of durations that are assumed because none is known: standard deviation of their
#: logarithms. One deviation is a factor of 7: tasks take seconds, minutes or hours.
UNKNOWN_SPREAD = 2.0
#: Number of past predictions that together weigh as much as the calculated probability.
CALCULATION_WEIGHT = 5.0


@dataclass(frozen=True)
class Pending:
    """Pending tasks of one pool."""

    #: Seconds of each task, or None if the caller gives none.
    stated: Sequence[float | None]
    #: Seconds of recently finished tasks.
    ended: Sequence[float]
    #: Number of workers that share the tasks.
    workers: int
    #: Assumed seconds of a task if none is known. If this is None too, nothing is predicted.
    assumed_s: float | None = None

    @property
    def known(self) -> bool:
        return not self.stated or bool(self.ended) or any(d is not None for d in self.stated)

    @property
    def predictable(self) -> bool:
        return not self.stated or (self.workers > 0 and bool(self.samples))

    @property
    def samples(self) -> Sequence[float]:
        """Known durations from which unknown ones are drawn."""
        if self.known or self.assumed_s is None:
            return self.ended or [d for d in self.stated if d is not None]
        return [self.assumed_s]


def all_known(pending: Pending) -> bool:
    """Return whether the duration of every task is stated."""
    return None not in pending.stated


class Prediction(NamedTuple):
    """Predicted seconds (None if unknown) and the probability that they are correct."""

    seconds: float | None
    confidence: float


def predict(pools: Sequence[Pending]) -> Prediction:
    """Predict the seconds until the last pending task of all pools has finished."""
    busy = [pool for pool in pools if pool.stated]
    if not busy:
        return Prediction(0.0, 1.0)
    if not all(pool.predictable for pool in busy):
        return Prediction(None, 0.0)
    source = random.Random(0)  # noqa: S311 - the same question gets the same answer
    calls = sum(min(len(pool.stated), PLACED_CALLS) for pool in busy)
    draws = max(12, min(60, PLACEMENTS // calls))
    plain = draws if any(not all_known(pool) for pool in busy) else 1
    seconds = median(max(_draw(pool, source) for pool in busy) for _ in range(plain))
    if not seconds:
        return Prediction(0.0, 1.0)
    low, high = (bound * seconds for bound in BAND)
    drawn = (max(_doubtful(pool, source) for pool in busy) for _ in range(draws))
    inside = sum(low <= one <= high for one in drawn)
    return Prediction(seconds, (1 + inside) / (2 + draws))


def _draw(pool: Pending, source: random.Random) -> float:
    """Return the seconds until a pool's tasks have finished, drawing unknown durations."""
    samples = pool.samples
    return _placed([source.choice(samples) if d is None else d for d in pool.stated], pool.workers)


def _doubtful(pool: Pending, source: random.Random) -> float:
    """Return the result of :func:`_draw` with random errors in all durations."""
    if not pool.known:
        return math.exp(source.gauss(0.0, UNKNOWN_SPREAD)) * _draw(pool, source)
    spread, seen = _spread(pool.ended), len(pool.ended)
    missing = math.sqrt(max(0.0, spread**2 - _observed_spread(pool.ended) ** 2))
    stated = min(spread, STATED_SPREAD)
    samples = pool.samples
    gauss, choice = source.gauss, source.choice
    common = gauss(0.0, (stated if all_known(pool) else spread) / math.sqrt(1 + seen))
    lengths = [
        choice(samples) * math.exp(gauss(0.0, missing))
        if duration is None
        else duration * math.exp(gauss(0.0, stated))
        for duration in pool.stated
    ]
    return math.exp(common) * _placed(lengths, pool.workers)


def _observed_spread(ended: Sequence[float]) -> float:
    return stdev([math.log(max(d, 1e-6)) for d in ended]) if len(ended) > 1 else 0.0


def _spread(ended: Sequence[float]) -> float:
    """Return a mean of the observed and the assumed spread, weighted by the finished tasks."""
    count = max(0, len(ended) - 1)
    total = ASSUMED_WEIGHT * ASSUMED_SPREAD**2 + count * _observed_spread(ended) ** 2
    return math.sqrt(total / (ASSUMED_WEIGHT + count))


def _placed(lengths: Sequence[float], workers: int) -> float:
    """Return the seconds until all tasks have finished if each takes the next free worker."""
    early, late = lengths[:-PLACED_CALLS], lengths[-PLACED_CALLS:]
    free = [sum(early) / workers] * min(workers, len(late))
    for length in late:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@dataclass
class Reliability:
    """Share of correct predictions in the past. New tasks void a prediction."""

    held: int = 0
    judged: int = 0
    _open: tuple[float, float] | None = field(default=None, init=False)
    _seen: tuple[float, int] = field(default=(0.0, 0), init=False)

    def look(self, pending: int, now: float) -> None:
        """Record the number of pending tasks. Check the kept prediction once none is pending."""
        last, before = self._seen
        if pending > before:
            self._open = None
        elif pending == 0 and self._open is not None:
            since, predicted = self._open
            # The last task finished between the previous call of this method and this one.
            actual = (last + now) / 2 - since
            self.judged += 1
            self.held += BAND[0] * predicted <= actual <= BAND[1] * predicted
            self._open = None
        self._seen = now, pending

    def note(self, predicted: float | None, now: float) -> None:
        """Keep a prediction for :meth:`look` to check, unless another one is being kept."""
        if predicted and self._open is None:
            self._open = now, predicted

    def adjusted(self, confidence: float) -> float:
        """Correct a probability by the share of correct past predictions."""
        total = CALCULATION_WEIGHT * confidence + self.held
        return total / (CALCULATION_WEIGHT + self.judged)
