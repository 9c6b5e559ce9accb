"""The scaler that turns load into decisions."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalable.scaling.completion import Pending, Reliability, mean_known, predict
from scalable.scaling.decisions import ScaleDecision

#: Work that takes one worker no longer than this, in seconds, is not worth a second one.
WORTH_A_WORKER_S = 5.0
#: How many decisions are remembered.
KEPT_DECISIONS = 10_000

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class _Load:
    """What one pool has to do, and who does it."""

    tag: str
    pending: Pending
    active: int

    @property
    def count(self) -> int:
        return len(self.pending.stated)

    @property
    def ratio(self) -> float:
        """Pending tasks for each active worker."""
        if not self.count:
            return 0.0
        return self.count / self.active if self.active else math.inf

    @property
    def work_s(self) -> float | None:
        """Worker-seconds, None where no running time is known."""
        mean = mean_known(self.pending)
        if mean is None:
            return None
        return sum(mean if d is None else d for d in self.pending.stated)

    @property
    def worth(self) -> float:
        """How many tasks the pending ones count as.

        Where running times are known: how many of the longest of them, and none below
        ``WORTH_A_WORKER_S``, would be as much work. More workers than that would wait for it.
        """
        work_s, mean = self.work_s, mean_known(self.pending)
        if not self.count or work_s is None or mean is None:
            return self.count
        longest = max(mean if d is None else d for d in self.pending.stated)
        return work_s / max(longest, WORTH_A_WORKER_S)


class AdaptiveScaler:
    """Decides how many workers each tag should gain or lose for its load.

    The load of a tag is its pending tasks over its active workers. Above ``scale_up_threshold``
    the tag gets as many workers as bring it there, below ``scale_down_threshold`` it keeps that
    many, and between the two nothing changes. Where running times are known (tasks carry
    ``duration``, or calls of the tag ended lately), worker-seconds decide how many: tasks count by
    their length, and short ones share workers. Deciding again for the same load, after the
    decision was carried out, changes nothing.

    Parameters
    ----------
    min_workers, max_workers
        Tag -> bounds, both included. They always hold, also during a cooldown; tags without run
        from 0 to unlimited.
    scale_up_threshold, scale_down_threshold
        Pending tasks for each active worker.
    cooldown_seconds
        After a tag gained workers it gains no more for so long, and the same for losing them.
        A decision that changes nothing starts none.

    Raises
    ------
    ValueError
        When bounds or thresholds are none.

    Examples
    --------
    >>> scaler = AdaptiveScaler(min_workers={"demeter": 2})
    >>> scaler.evaluate([{"tag": "demeter"}], {"demeter": 0}).workers_to_add
    {'demeter': 2}
    """

    def __init__(
        self,
        min_workers: Mapping[str, int] | None = None,
        max_workers: Mapping[str, int | None] | None = None,
        scale_up_threshold: float = 0.8,
        scale_down_threshold: float = 0.2,
        cooldown_seconds: float = 60,
    ) -> None:
        self.min_workers = dict(min_workers or {})
        self.max_workers = {t: n for t, n in (max_workers or {}).items() if n is not None}
        for name, bounds in (("min_workers", self.min_workers), ("max_workers", self.max_workers)):
            for tag, count in bounds.items():
                _check_count(f"{name}[{tag!r}]", count)
        for tag, maximum in self.max_workers.items():
            if self.min_workers.get(tag, 0) > maximum:
                raise ValueError(
                    f"minimum {self.min_workers[tag]} .. maximum {maximum} of {tag!r} is no range"
                )
        if not 0 <= scale_down_threshold < scale_up_threshold < math.inf:
            raise ValueError(
                f"scale_down_threshold {scale_down_threshold} has to be at least 0, and less than "
                f"scale_up_threshold {scale_up_threshold}"
            )
        if not 0 <= cooldown_seconds < math.inf:
            raise ValueError(f"cooldown_seconds {cooldown_seconds} is no length of time")
        self.scale_up_threshold = scale_up_threshold
        self.scale_down_threshold = scale_down_threshold
        self.cooldown_seconds = cooldown_seconds
        self._changed_at: dict[tuple[str, Direction], float] = {}
        self._reliability = Reliability()
        self._history: deque[ScaleDecision] = deque(maxlen=KEPT_DECISIONS)

    @property
    def decision_history(self) -> list[ScaleDecision]:
        """The decisions so far, oldest first; also those that change nothing."""
        return list(self._history)

    def reset_cooldown(self) -> None:
        """Let the next decision change every tag in both directions."""
        self._changed_at.clear()

    def evaluate(
        self,
        pending_tasks: Iterable[Mapping[str, Any]],
        active_workers: Mapping[str, int],
        recent_completions: Iterable[Mapping[str, Any]] | None = None,
    ) -> ScaleDecision:
        """Decide for the load as it is now.

        Parameters
        ----------
        pending_tasks
            Tasks that wait or run, each with ``tag`` and, where it is known, ``duration`` in
            seconds.
        active_workers
            Tag -> workers. Tags with pending tasks and none here have 0.
        recent_completions
            Rows with ``tag`` and ``duration_s`` of tasks that ended lately, such as those of
            ``tasks.jsonl``; rows without either are passed over.

        Raises
        ------
        ValueError
            When a task has no tag, a duration or count is none; nothing is remembered then.
        """
        loads = self._loads(pending_tasks, active_workers, recent_completions or ())
        now = time.monotonic()
        changes: dict[str, int] = {}
        reasons: list[str] = []
        for load in loads:
            change, reason = self._judge(load, now)
            changes[load.tag] = change
            if reason:
                reasons.append(f"{load.tag}: {reason}")
        decision = self._decide(loads, changes, reasons, now)
        self._history.append(decision)
        return decision

    def _loads(
        self,
        pending_tasks: Iterable[Mapping[str, Any]],
        active_workers: Mapping[str, int],
        recent_completions: Iterable[Mapping[str, Any]],
    ) -> list[_Load]:
        for name, count in active_workers.items():
            _check_count(f"active_workers[{name!r}]", count)
        stated: dict[str, list[float | None]] = {}
        for number, task in enumerate(pending_tasks):
            tag: Any = task.get("tag")
            if not isinstance(tag, str):
                raise ValueError(f"pending_tasks[{number}] has no tag: {dict(task)}")  # noqa: TRY004
            duration = task.get("duration")
            if duration is not None and not _is_duration(duration):
                raise ValueError(f"pending_tasks[{number}] has duration {duration!r}")
            stated.setdefault(tag, []).append(duration)
        ended: dict[Any, list[float]] = {}
        for row in recent_completions:
            if _is_duration(row.get("duration_s")) and row.get("state", "succeeded") == "succeeded":
                ended.setdefault(row.get("tag"), []).append(float(row["duration_s"]))
        loads = []
        for tag in dict.fromkeys([*active_workers, *stated, *self.min_workers]):
            active = active_workers.get(tag, 0)
            pending = Pending(stated.get(tag, ()), ended.get(tag, ()), active)
            loads.append(_Load(tag, pending, active))
        return loads

    def _judge(self, load: _Load, now: float) -> tuple[int, str]:
        """By how many workers a tag is to change, and why."""
        low, high = self.min_workers.get(load.tag, 0), self.max_workers.get(load.tag)
        bounded = _within(load.active, low, high)
        wished, reason = self._wished(load)
        target = _within(wished, low, high)
        if target != wished:
            reason += f", held to {'at least' if target > wished else 'at most'} {target}"
        if target == load.active:
            return 0, reason if wished != load.active else ""
        direction: Direction = "up" if target > load.active else "down"
        cooldown_s = self._cooldown_s(load.tag, direction, now)
        if cooldown_s > 0:
            words = f"cooldown of scale-{direction} for another {cooldown_s:.0f} s"
            if bounded == load.active:
                return 0, f"{reason}; not now: {words}"
            return bounded - load.active, f"outside {_range(low, high)}, which holds in a cooldown"
        self._changed_at[load.tag, direction] = now
        change = target - load.active
        return change, f"{change:+d} workers: {reason}"

    def _wished(self, load: _Load) -> tuple[int, str]:
        """How many workers a tag should have whatever its bounds are, and why."""
        enough = math.ceil(_tidy(load.worth / self.scale_up_threshold))
        shown = f"{load.count} pending for {load.active} workers, load {load.ratio:.2f}"
        if load.work_s is not None and load.count:
            shown += f", {load.work_s:.0f} worker-seconds"
        if load.ratio > self.scale_up_threshold:
            return max(load.active, enough), f"{shown}, above {self.scale_up_threshold:g}"
        if load.ratio < self.scale_down_threshold:
            return min(load.active, enough), f"{shown}, below {self.scale_down_threshold:g}"
        return load.active, shown

    def _cooldown_s(self, tag: str, direction: Direction, now: float) -> float:
        since = self._changed_at.get((tag, direction))
        return 0.0 if since is None else since + self.cooldown_seconds - now

    def _decide(
        self, loads: Sequence[_Load], changes: Mapping[str, int], reasons: list[str], now: float
    ) -> ScaleDecision:
        after = [
            Pending(load.pending.stated, load.pending.ended, load.active + changes[load.tag])
            for load in loads
        ]
        self._reliability.look(sum(load.count for load in loads), now)
        seconds, calculated = predict(after)
        self._reliability.note(seconds, now)
        return ScaleDecision(
            workers_to_add={tag: n for tag, n in changes.items() if n > 0},
            workers_to_remove={tag: -n for tag, n in changes.items() if n < 0},
            reasoning="; ".join(reasons) or "the load is within its thresholds",
            confidence=self._reliability.adjusted(calculated) if seconds else calculated,
            predicted_completion_time=seconds,
            timestamp=time.time(),
            active_workers={load.tag: load.active for load in loads},
        )


def _tidy(value: float) -> float:
    """Without the last bits, in which 4 / 0.8 may be more than 5."""
    return round(value, 9)


def _within(count: int, low: int, high: int | None) -> int:
    return max(low, count if high is None else min(count, high))


def _range(low: int, high: int | None) -> str:
    return f"{low} .. {'unlimited' if high is None else high}"


def _is_duration(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


def _check_count(name: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"{name} is {count!r}: a number of workers is 0, 1, 2, ...")
