"""The scaler that turns a user's view of the load into decisions."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scalable.scaling.completion import Pending, Reliability, predict
from scalable.scaling.decisions import ScaleDecision

#: Workers are asked for so that the known work takes so long, or as long as its longest call: less
#: is not worth starting workers for. Dask's Adaptive aims for the same.
TARGET_S = 5.0
#: Running times that are remembered for each tag, the latest ones.
KEPT_DURATIONS = 200
#: No call takes longer, in seconds; beyond it sums of running times are no numbers any more.
LONGEST_CALL_S = 1e12
_EPSILON = 1e-9


@dataclass(frozen=True)
class _Load:
    """What is known of one tag at one moment."""

    tag: str
    #: Seconds of each pending call, None where the caller does not say.
    said: tuple[float | None, ...]
    active: int
    #: Running times of calls that ended.
    ended: tuple[float, ...]

    @property
    def pending(self) -> int:
        return len(self.said)

    @property
    def durations(self) -> tuple[float, ...]:
        """Seconds of each pending call as far as anything is known; empty where nothing is."""
        told = [length for length in self.said if length is not None]
        if not (self.ended or told):
            return ()
        typical = fmean(self.ended or told)
        return tuple(typical if length is None else length for length in self.said)


class AdaptiveScaler:
    """Decides from pending calls and active workers; it reads and changes no cluster itself.

    The load of a tag is its pending calls over its active workers. Between the thresholds nothing
    changes. Beyond them the count becomes what brings the load to ``scale_up_threshold`` or, where
    running times are known, what the pending worker-seconds need. Applying a decision and asking
    again with the same load changes nothing.

    Parameters
    ----------
    min_workers, max_workers
        Tag -> bounds, both included; a tag that is not named runs from 0 to unlimited. Bounds hold
        always, also within a cooldown.
    scale_up_threshold, scale_down_threshold
        Pending calls for each active worker.
    cooldown_seconds
        For so long after a change of a tag it is not changed in the same direction again.
    clock
        Monotonic seconds.

    Attributes
    ----------
    decision_history
        Every decision, the oldest first.

    Raises
    ------
    ValueError
        When bounds or thresholds contradict themselves.
    """

    def __init__(
        self,
        min_workers: Mapping[str, int] | None = None,
        max_workers: Mapping[str, int] | None = None,
        scale_up_threshold: float = 0.8,
        scale_down_threshold: float = 0.2,
        cooldown_seconds: float = 60,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.min_workers = dict(min_workers or {})
        self.max_workers = dict(max_workers or {})
        if not 0 <= scale_down_threshold < scale_up_threshold:
            raise ValueError(
                f"scale_down_threshold {scale_down_threshold} .. scale_up_threshold "
                f"{scale_up_threshold} is no range above 0"
            )
        if not cooldown_seconds >= 0:
            raise ValueError(f"cooldown_seconds cannot be {cooldown_seconds}")
        for tag in self.min_workers.keys() | self.max_workers.keys():
            low, high = self._bounds(tag)
            if not (_whole(low) and (_whole(high) or high == math.inf) and 0 <= low <= high):
                raise ValueError(f"{tag!r}: minimum {low} .. maximum {high} is no range")
        self.scale_up_threshold = scale_up_threshold
        self.scale_down_threshold = scale_down_threshold
        self.cooldown_seconds = cooldown_seconds
        self.decision_history: list[ScaleDecision] = []
        self._clock = clock
        self._changed_at: dict[tuple[str, int], float] = {}
        self._durations: dict[str, deque[float]] = {}
        self._reliability = Reliability()

    def reset_cooldown(self) -> None:
        """Forget when pools were changed: the next evaluation may change any."""
        self._changed_at.clear()

    def evaluate(
        self,
        pending_tasks: Iterable[Mapping[str, Any]],
        active_workers: Mapping[str, int],
        recent_completions: Iterable[Mapping[str, Any]] | None = None,
    ) -> ScaleDecision:
        """Decide once.

        Parameters
        ----------
        pending_tasks
            One mapping for each call that has not ended, also for those that run: ``tag``, and
            where it is known ``duration`` in seconds.
        active_workers
            Tag -> workers that are there or on their way.
        recent_completions
            One mapping for each call that ended since the last evaluation: ``tag`` and
            ``duration_s``. They are remembered.

        Raises
        ------
        ValueError
            When a row has no tag, or a count or duration is none; nothing is decided then.
        """
        loads = self._loads(list(pending_tasks), active_workers, list(recent_completions or ()))
        now = self._clock()
        after: dict[str, int] = {}
        reasons: list[str] = []
        for load in loads:
            after[load.tag], reason = self._count(load, now)
            if reason:
                reasons.append(f"{load.tag}: {reason}")
        changes = {load.tag: after[load.tag] - load.active for load in loads}
        for tag, change in changes.items():
            if change:
                self._changed_at[tag, _sign(change)] = now
        self._reliability.look(sum(load.pending for load in loads), now)
        seconds, confidence = predict(
            [Pending(load.said, load.ended, after[load.tag]) for load in loads]
        )
        if seconds:
            self._reliability.note(seconds, now)
            confidence = self._reliability.adjusted(confidence)
        decision = ScaleDecision(
            workers_to_add={tag: change for tag, change in changes.items() if change > 0},
            workers_to_remove={tag: -change for tag, change in changes.items() if change < 0},
            reasoning="; ".join(reasons) or "every load is between the thresholds",
            confidence=confidence,
            predicted_completion_time=seconds,
            timestamp=time.time(),
            active_workers={load.tag: load.active for load in loads},
        )
        self.decision_history.append(decision)
        return decision

    def _loads(
        self,
        pending: Sequence[Mapping[str, Any]],
        active: Mapping[str, int],
        ended: Sequence[Mapping[str, Any]],
    ) -> list[_Load]:
        for tag, count in active.items():
            if not _whole(count) or count < 0:
                raise ValueError(f"{tag!r} cannot have {count!r} active workers")
        rows = [(_tag(task, "pending task"), _seconds(task, "duration")) for task in pending]
        lengths = [(_tag(row, "completion"), _seconds(row, "duration_s")) for row in ended]
        for tag, length in lengths:
            if length is not None:
                self._durations.setdefault(tag, deque(maxlen=KEPT_DURATIONS)).append(length)
        said: dict[str, list[float | None]] = {}
        for tag, length in rows:
            said.setdefault(tag, []).append(length)
        tags = dict.fromkeys([*active, *said, *self.min_workers])
        ended_of = {tag: tuple(self._durations.get(tag, ())) for tag in tags}
        return [
            _Load(tag, tuple(said.get(tag, ())), active.get(tag, 0), ended_of[tag]) for tag in tags
        ]

    def _count(self, load: _Load, now: float) -> tuple[int, str]:
        """Workers that a tag is to have, and why it is not what it has."""
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
            if self._cools(load.tag, count - load.active, now):
                count = int(max(low, min(load.active, high)))
            return count, f"{shown}, bounds {low} .. {high:g}"
        if self._cools(load.tag, count - load.active, now):
            return load.active, f"{shown}, but the last change is within its cooldown"
        return count, shown + ("" if count == wished else f", bounds {low} .. {high:g}")

    def _wished(self, load: _Load) -> int:
        """Workers that the load asks for, without bounds."""
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

    def _cools(self, tag: str, change: float, now: float) -> bool:
        since = self._changed_at.get((tag, _sign(change)))
        return since is not None and now - since < self.cooldown_seconds

    def _bounds(self, tag: str) -> tuple[int, float]:
        return self.min_workers.get(tag, 0), self.max_workers.get(tag, math.inf)


def _sign(change: float) -> int:
    return 1 if change > 0 else -1


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
        raise ValueError(f"{key} cannot be {value!r} seconds: {dict(row)!r}")
    return float(value)
