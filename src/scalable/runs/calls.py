"""Tasks of a run, combined from their rows. Does no I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf, isnan, nan
from sys import intern
from typing import Any, NamedTuple

from scalable.model.cache_outcomes import CacheOutcome
from scalable.model.overview import MEASUREMENTS, Measurement

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
#: State of a cache hit. Such tasks are counted from cache outcomes instead of these rows, since a
#: hit in a client has no Dask task.
FOUND = "found"
_UNKNOWN_REASON = "reason not known"
# Largest number of restarted tasks in one row. Larger numbers are treated as damage.
_MOST_REPEATS = 1_000_000
# Larger numbers cannot be measurements, and their products would overflow.
_LARGEST = 1e100

#: (name of a task, or None if only its id is known; tags that the task has had).
_Kind = tuple[str | None, frozenset[str]]


class RecordedTasks:
    """Tasks of a run, kept in columns. An id may stand for a bundle: several tasks sent as one.
    Tasks are numbered in the order of their first rows. Each takes about 200 bytes.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._latest = -inf
        #: Span of all tasks.
        self.work = WorkSpan()
        self._numbers: dict[str, int] = {}
        self._kinds: list[_Kind] = [(None, frozenset())]
        self._kind_numbers = {self._kinds[0]: 0}
        self._kind = array("i")
        #: Transition table: (kind, name and tag of the next row) to new kind.
        self._moves: dict[tuple[int, object, object], int] = {}
        self._last: list[str] = []
        self._final: list[str] = []
        self._starts = array("i")
        self._measured = {measurement.key: array("d") for measurement in MEASUREMENTS}
        self._bundles: dict[int, Bundled] = {}
        self._reasons: dict[int, list[str]] = {}
        self.add(rows)

    @property
    def last_moment(self) -> float | None:
        """Latest timestamp of all rows in epoch seconds, or None without rows."""
        return None if self._latest == -inf else self._latest

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the next rows of ``tasks.jsonl``. Rows without the required keys are skipped."""
        # Every row of a record comes here: local names are faster.
        numbers, kinds, moves, last = self._numbers, self._kind, self._moves, self._last
        latest, work = self._latest, self.work
        for row in rows:
            get = row.get
            moment, task_id, state = get("timestamp"), get("task_id"), get("state")
            if isinstance(moment, (float, int)) and latest < moment < _LARGEST:
                latest = moment
            work.add_state(state, moment)
            if not isinstance(task_id, str) or not isinstance(state, str):
                continue
            call = numbers.get(task_id)
            if call is None:
                call = self._new(task_id)
            before, name, tag = kinds[call], get("task_name"), get("tag")
            try:
                kinds[call] = moves[before, name, tag]
            except (KeyError, TypeError):  # values of damaged rows may be of any type
                kinds[call] = self._move(before, text_in(row, "task_name"), text_in(row, "tag"))
            if state == RERUN:
                self._begin_again(call, row)
                continue
            last[call] = state = intern(state)
            if state in FINAL_STATES:
                self._end(call, state, row)
            elif state == "running":
                self._starts[call] += 1
        self._latest = latest

    def _begin_again(self, call: int, row: Mapping[str, Any]) -> None:
        count = row.get("count")
        many = count if isinstance(count, int) and 0 < count < _MOST_REPEATS else 1
        why = text_in(row, "reason") or _UNKNOWN_REASON
        self._reasons.setdefault(call, []).extend([why] * many)

    def _new(self, task_id: str) -> int:
        call = self._numbers[task_id] = len(self._kind)
        self._kind.append(0)
        self._last.append("")
        self._final.append("")
        self._starts.append(0)
        for column in self._measured.values():
            column.append(nan)
        return call

    def _move(self, before: int, name: str | None, tag: str | None) -> int:
        was, tags = self._kinds[before]
        kind = (was if name is None else name, tags if tag is None else tags | {tag})
        number = self._kind_numbers.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        self._moves[before, name, tag] = number
        return number

    def _end(self, call: int, state: str, row: Mapping[str, Any]) -> None:
        self._final[call] = state
        for key, column in self._measured.items():
            column[call] = _or_nan(row.get(key))
        many = bundled(row) if "calls" in row else None
        if many is not None:
            self._bundles[call] = many
        elif self._bundles:
            self._bundles.pop(call, None)

    # Results -------------------------------------------------------------------------------------

    def by_name(self) -> dict[str, Sequence[int]]:
        """Map task names to task numbers. A task without a name has its id as name."""
        found: dict[str, array[int]] = {}
        for (task_id, call), kind in zip(self._numbers.items(), self._kind, strict=True):
            name = self._kinds[kind][0]
            found.setdefault(task_id if name is None else name, array("i")).append(call)
        return dict(found)

    def tags(self, calls: Iterable[int]) -> set[str]:
        kinds = {self._kind[call] for call in calls}
        return {tag for kind in kinds for tag in self._kinds[kind][1]}

    def states(self, calls: Iterable[int]) -> Counter[str]:
        """Count tasks by their latest final state, or else latest state, without cache hits."""
        states: Counter[str] = Counter()
        for call in calls:
            if self._last[call] == FOUND:
                continue
            many = self._bundles.get(call)
            if many is None:
                # A task of a lost bundle starts again, but finishes in a later one.
                states[self._final[call] or self._last[call]] += 1
            else:
                states["succeeded"] += many.calls - many.failed
                states["failed"] += many.failed
                states["cancelled"] += many.cancelled
        del states[""]
        return +states

    def measured(self, measurement: Measurement, calls: Iterable[int]) -> list[float]:
        """Return the measured values of tasks, including those in bundles."""
        key, column = measurement.key, self._measured[measurement.key]
        found: list[float] = []
        for call in calls:
            value, many = column[call], self._bundles.get(call)
            if many is not None and key == "duration_s":
                found += many.durations_s
            elif isnan(value):
                continue
            elif many is None:
                found.append(value)
            elif many.calls:
                found += [measurement.of_one(value, many.calls)] * many.calls
        return found

    def reruns(self) -> dict[str, list[str]]:
        """Map the ids of tasks that started more than once to the reasons of their reruns."""
        return {
            task_id: self._reasons.get(call) or [_UNKNOWN_REASON] * (self._starts[call] - 1)
            for task_id, call in self._numbers.items()
            if self._starts[call] > 1 or call in self._reasons
        }


class WorkSpan:
    """Time from the first submission of a run's tasks to their last finish."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._submitted, self._ended = inf, -inf
        self.add(rows)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.add_state(row.get("state"), row.get("timestamp"))

    def add_state(self, state: object, moment: object) -> None:
        """Add a task's state and its time in epoch seconds. Other values are ignored."""
        if state == "submitted":
            if isinstance(moment, (float, int)) and -_LARGEST < moment < self._submitted:
                self._submitted = moment
        elif (
            state in ("succeeded", "failed")
            and isinstance(moment, (float, int))
            and self._ended < moment < _LARGEST
        ):
            self._ended = moment

    def parts(self, workers: Iterable[Mapping[str, Any]]) -> tuple[float, float] | None:
        """Return the seconds of start-up, and from then to the last finish. None without tasks.
        Start-up lasts from the first request of a worker, or the first submission if no worker was
        requested before, until the first worker has connected.
        """
        begin, end = self._submitted, self._ended
        if begin == inf or end == -inf:
            return None
        moments: dict[str, list[float]] = {"requested": [], "started": []}
        for row in workers:
            event, moment = row.get("event"), number_in(row, "timestamp")
            if moment is not None and event in ("requested", "started"):
                moments[event].append(moment)
        connected = min(moments["started"], default=begin)
        before = max(0.0, min(connected, begin) - min(moments["requested"], default=begin))
        first = min(max(begin, connected), max(begin, end))
        return before + first - begin, max(0.0, end - first)

    def seconds(self, workers: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the seconds of both parts together, or None without tasks."""
        parts = self.parts(workers)
        return None if parts is None else sum(parts)


def number_in(row: Mapping[str, Any], key: str, most: float = _LARGEST) -> float | None:
    """Return a number in a row, or None for other values and for magnitudes from ``most`` on."""
    value = row.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if -most < value < most else None


def _or_nan(value: object) -> float:
    """Return a measured number, or NaN for another value or too large a number."""
    if isinstance(value, (float, int)) and -_LARGEST < value < _LARGEST:
        return nan if isinstance(value, bool) else value
    return nan


def text_in(row: Mapping[str, Any], key: str) -> str | None:
    """Return a string of a row, or None for any other value."""
    value = row.get(key)
    return value if isinstance(value, str) else None


# Bundled ------------------------------------------------------------------------------------------


class Bundled(NamedTuple):
    """Tasks of one bundle, as described by its row. Cache hits are not counted."""

    calls: int
    failed: int
    #: Running times derived from the quantiles, ascending. Only their sum is measured.
    durations_s: Sequence[float]
    #: Tasks cancelled with the bundle after it had started, not in ``calls``.
    cancelled: int = 0


def bundled(row: Mapping[str, Any]) -> Bundled | None:
    """Return the tasks of a bundle from its row, or None for any other row."""
    told = row.get("calls")
    if not isinstance(told, Mapping):
        return None
    try:
        count, failed, total = int(told["count"]), int(told["failed"]), float(told["total_s"])
        cancelled = max(0, int(told.get("cancelled", 0)))
        known = sorted((float(q), float(value)) for q, value in told["quantiles_s"].items())
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    if count < 0 or not 0 <= failed <= count or (count and not known):
        return None
    lengths = [_between(known, (i + 0.5) / count) for i in range(count)]
    scale = total / sum(lengths) if sum(lengths) > 0 else 1.0
    return Bundled(count, failed, [length * scale for length in lengths], cancelled)


def _between(known: Sequence[tuple[float, float]], share: float) -> float:
    """Return the quantile ``share`` by linear interpolation between known quantiles."""
    below = known[0]
    for above in known:
        if above[0] >= share:
            width = above[0] - below[0]
            part = (share - below[0]) / width if width else 0.0
            return below[1] + part * (above[1] - below[1])
        below = above
    return below[1]


def each_call(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows. A bundle's last row is replaced by one row for each successful task."""
    for row in rows:
        calls = bundled(row)
        if calls is None:
            yield row
            continue
        for duration_s in calls.durations_s[: calls.calls - calls.failed]:
            yield {**row, "duration_s": duration_s, "calls": None}


# Reasons for which tasks run again ----------------------------------------------------------------


#: Value of ``state`` in the row of a restarted task. The row has ``reason`` and ``lost``.
RERUN = "rerun"


class RetryReason(StrEnum):
    """Reason why a task runs again."""

    #: Its worker was lost while it ran.
    WORKER_LOST = "worker lost"
    #: Its worker left as planned, or was preempted, while it ran.
    TAKEN_BACK = "worker left or was preempted"
    #: The worker that held its result was lost.
    RESULT_LOST = "result lost"
    #: It failed, and was submitted with retries.
    RETRIES = "failed, retried"
    #: It failed, and a client requested a retry.
    RETRIED = "retried by the user"
    #: Its result was released, and is needed again.
    NEEDED = "result needed again"


def outcomes_in(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, str | None, CacheOutcome]]:
    """Yield task name, tag and outcome of each valid row."""
    for row in rows:
        name, tag = row.get("task_name"), row.get("tag")
        if not isinstance(name, str):
            continue
        try:
            outcome = CacheOutcome.from_message(row)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        yield name, tag if isinstance(tag, str) else None, outcome
