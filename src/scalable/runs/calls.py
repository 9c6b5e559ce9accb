"""Tasks and workers of a run, combined from their rows. Does no I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import inf, isnan, nan
from sys import intern
from typing import Any, NamedTuple

from scalable.model.cache_outcomes import CacheOutcome
from scalable.model.overview import MEASUREMENTS, Measurement
from scalable.runs.streams import Row, mapping, number, text

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
#: State of a cache hit. Such tasks are counted from cache outcomes instead of these rows, since a
#: hit in a client has no Dask task.
FOUND = "found"
_UNKNOWN_REASON = "reason not known"
# Largest number of restarted tasks in one row. Larger numbers are treated as damage.
_MOST_REPEATS = 1_000_000


class Span(NamedTuple):
    """Task (or bundle) on a worker, with its times in epoch seconds and its name."""

    worker: str
    begin: float
    end: float
    name: str
    tag: str
    failed: bool
    #: Seconds in the queue before ``begin``.
    queued_s: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Tasks that could run only one after the other."""

    #: Sum of their running times.
    seconds: float
    tasks: int
    #: Pairs of a task name and its number of tasks in the chain, in order of first appearance.
    names: tuple[tuple[str, int], ...]


#: First states of tasks: with all inputs, and without.
_ARRIVED = "submitted", "blocked"


class RecordedTasks:
    """Tasks of a run, kept in columns. An id may stand for a bundle: several tasks sent as one.
    Tasks are numbered in the order of their first rows. Each takes about 200 bytes, and about as
    much again with ``spans``.
    """

    def __init__(self, rows: Iterable[Row] = (), *, spans: bool = False) -> None:
        self._numbers: dict[str, int] = {}
        #: Names of tasks, or their ids.
        self._names: list[str] = []
        #: Tags that tasks have had, the latest last. Tasks share equal ones.
        self._tags: list[tuple[str, ...]] = []
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._last: list[str] = []
        self._final: list[str] = []
        self._starts = array("i")
        #: Time of the final row, -inf if it is not known.
        self.ended = array("d")
        #: Measurements by key. NaN stands for unknown values.
        self.measurements = {each.key: array("d") for each in MEASUREMENTS}
        self.measurements["input_bytes"] = array("d")
        self.bundles: dict[int, Bundled] = {}
        self._reasons: dict[int, list[str]] = {}
        #: Numbers of tasks and of those for which they waited last.
        self._after: dict[int, int] = {}
        #: Spans of tasks that are not running, and the last rows of those that are.
        self._spans: list[Span] | None = [] if spans else None
        self._running: dict[int, Row] = {}
        self._read(rows)

    def _read(self, rows: Iterable[Row]) -> None:
        """Read the rows of ``tasks.jsonl``. Rows without the required keys are skipped."""
        # Every row of a record comes here: local names are faster.
        numbers, names, tags, last = self._numbers, self._names, self._tags, self._last
        latest, first = -inf, inf
        for row in rows:
            get = row.get
            moment, task_id, state = number(get("timestamp")), get("task_id"), get("state")
            if moment is not None and moment > latest:
                latest = moment
            if state in _ARRIVED and moment is not None and moment < first:
                first = moment
            if not isinstance(task_id, str) or not isinstance(state, str):
                continue
            call = numbers.get(task_id)
            if call is None:
                call = self._new(task_id)
            name, tag = get("task_name"), get("tag")
            if name != names[call] and isinstance(name, str):
                names[call] = intern(name)
            known = tags[call]
            if (not known or known[-1] != tag) and isinstance(tag, str):
                known = (*(each for each in known if each != tag), tag)
                tags[call] = self._shared.setdefault(known, known)
            if state == RERUN:
                self._begin_again(call, row)
                continue
            last[call] = state = intern(state)
            if state in FINAL_STATES:
                self._end(call, state, moment, row)
            elif state == "running":
                self._starts[call] += 1
                if self._spans is not None and moment is not None and text(get("worker")):
                    self._running[call] = row
        #: Latest timestamp of all rows in epoch seconds, or None without rows.
        self.last_moment = None if latest == -inf else latest
        #: Time of the first submission.
        self._first = first

    def _begin_again(self, call: int, row: Row) -> None:
        count = row.get("count")
        many = count if isinstance(count, int) and 0 < count < _MOST_REPEATS else 1
        why = text(row.get("reason")) or _UNKNOWN_REASON
        self._reasons.setdefault(call, []).extend([why] * many)

    def _new(self, task_id: str) -> int:
        call = self._numbers[task_id] = len(self._names)
        self._names.append(task_id)
        self._tags.append(())
        self._last.append("")
        self._final.append("")
        self._starts.append(0)
        self.ended.append(-inf)
        for column in self.measurements.values():
            column.append(nan)
        return call

    def _end(self, call: int, state: str, moment: float | None, row: Row) -> None:
        self._final[call] = state
        self.ended[call] = -inf if moment is None else moment
        for key, column in self.measurements.items():
            value = number(row.get(key))
            column[call] = nan if value is None else value
        many = bundled(row) if "calls" in row else None
        if many is not None:
            self.bundles[call] = many
        elif self.bundles:
            self.bundles.pop(call, None)
        if "after" in row:
            self._after[call] = self._numbers.get(text(row["after"]) or "", -1)
        if self._spans is not None:
            self._running.pop(call, None)
            duration = self.measurements["duration_s"][call]
            if moment is not None and duration >= 0 and text(row.get("worker")):
                self._spans.append(_span(row, moment - duration, moment))

    # Results -------------------------------------------------------------------------------------

    def by_name(self) -> dict[str, Sequence[int]]:
        """Map task names to task numbers. A task without a name has its id as name."""
        found: dict[str, array[int]] = {}
        for call, name in enumerate(self._names):
            found.setdefault(name, array("i")).append(call)
        return dict(found)

    def succeeded(self) -> dict[tuple[str | None, str], Sequence[int]]:
        """Map the latest tag and the name of successful tasks to their numbers."""
        found: dict[tuple[str | None, str], array[int]] = {}
        for call, state in enumerate(self._final):
            if state == "succeeded":
                tag = (self._tags[call] or (None,))[-1]
                found.setdefault((tag, self._names[call]), array("i")).append(call)
        return dict(found)

    def durations(self, call: int) -> Sequence[float]:
        """Return the running seconds of a successful task, or of those of its bundle."""
        many, duration = self.bundles.get(call), self.measurements["duration_s"][call]
        if many is None:
            return () if isnan(duration) else (duration,)
        return many.durations_s[: many.calls - many.failed]

    def tags(self, calls: Iterable[int]) -> set[str]:
        return {tag for tags in {self._tags[call] for call in calls} for tag in tags}

    def states(self, calls: Iterable[int]) -> Counter[str]:
        """Count tasks by their latest final state, or else latest state, without cache hits."""
        states: Counter[str] = Counter()
        for call in calls:
            if self._last[call] == FOUND:
                continue
            many = self.bundles.get(call)
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
        key, column = measurement.key, self.measurements[measurement.key]
        found: list[float] = []
        for call in calls:
            value, many = column[call], self.bundles.get(call)
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

    def spans(self, until: float) -> list[Span]:
        """Return the spans, if they were asked for. Those of running tasks end at ``until``."""
        running = [_span(row, row["timestamp"], until) for row in self._running.values()]
        return (self._spans or []) + [span for span in running if span.begin <= until]

    def work_parts(self, workers: Iterable[Row]) -> tuple[float, float] | None:
        """Return the seconds of start-up, and from then to the last finish. None without tasks.
        Start-up lasts from the first request of a worker, or the first submission if no worker was
        requested before, until the first worker has connected.
        """
        finished = zip(self.ended, self._final, strict=True)
        begin = self._first
        end = max((at for at, state in finished if state in ("succeeded", "failed")), default=-inf)
        if begin == inf or end == -inf:
            return None
        moments: dict[str, list[float]] = {"requested": [], "started": []}
        for row in workers:
            event, moment = row.get("event"), number(row.get("timestamp"))
            if moment is not None and event in ("requested", "started"):
                moments[event].append(moment)
        connected = min(moments["started"], default=begin)
        before = max(0.0, min(connected, begin) - min(moments["requested"], default=begin))
        first = min(max(begin, connected), max(begin, end))
        return before + first - begin, max(0.0, end - first)

    def longest_chain(self) -> Chain | None:
        """Return the chain with the longest running time, or None without dependent tasks.
        A chain leads from each task to the input task that finished last (``after`` in its row).
        """
        if not self._after:
            return None
        lengths: dict[int, float] = {}
        before: dict[int, int] = {}
        durations = self.measurements["duration_s"]
        done = (call for call, state in enumerate(self._final) if state == "succeeded")
        for call in sorted(done, key=self.ended.__getitem__):
            if isnan(durations[call]):
                continue
            after = self._after.get(call, -1)
            if after in lengths:
                before[call] = after
            lengths[call] = durations[call] + lengths.get(after, 0.0)
        if not before:
            return None
        calls = [max(before, key=lengths.__getitem__)]
        while calls[-1] in before:
            calls.append(before[calls[-1]])
        names = Counter(self._names[call] for call in reversed(calls))
        return Chain(lengths[calls[0]], len(calls), tuple(names.items()))


def _span(row: Row, begin: float, end: float) -> Span:
    # Millions of spans share their strings.
    worker, tag = intern(row["worker"]), intern(text(row.get("tag")) or "")
    name = intern(text(row.get("task_name")) or row["task_id"])
    queued_s = max(0.0, number(row.get("queued_s")) or 0.0)
    return Span(worker, begin, end, name, tag, row["state"] == "failed", queued_s)


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
    told = mapping(row.get("calls"))
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
    for (low, below), (high, above) in pairwise(known):
        if share <= high:
            return below + max(0.0, share - low) / ((high - low) or 1.0) * (above - below)
    return known[-1][1]


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


# Workers ------------------------------------------------------------------------------------------

#: Reason in the ``removed`` row of a worker that stayed until the session closed.
REASON_CLOSED = "closed"
#: First word of the reason in the ``removed`` row of a worker that was lost.
REASON_LOST = "lost"
#: Tag that stands for rows without a tag.
NO_TAG = "(no tag)"


class Presence(NamedTuple):
    """Time in epoch seconds during which a worker of a tag was connected."""

    worker: str
    tag: str
    begin: float
    end: float
    #: Time of the request, None if it is not recorded.
    requested: float | None
    #: Reason for which the worker was removed, None if it was not.
    reason: str | None = None

    @property
    def lost(self) -> bool:
        return (self.reason or "").startswith(REASON_LOST)


def presences(rows: Iterable[Row], until: float = inf) -> list[Presence]:
    """Return the times when workers were connected, up to ``until`` (epoch seconds)."""
    found: list[Presence] = []
    asked: dict[str, float] = {}
    here: dict[str, Presence] = {}
    for row in rows:
        event, worker, moment = row.get("event"), row.get("worker"), number(row.get("timestamp"))
        if not isinstance(worker, str) or moment is None:
            continue
        if event == "requested":
            asked.setdefault(worker, moment)
        elif event == "started" and worker not in here:
            tag, requested = text(row.get("tag")) or NO_TAG, asked.pop(worker, None)
            here[worker] = Presence(worker, tag, moment, max(moment, until), requested)
        elif event == "removed" and worker in here:
            then, reason = here.pop(worker), text(row.get("reason")) or ""
            found.append(then._replace(end=max(then.begin, moment), reason=reason))
    return [*found, *here.values()]


# Cache outcomes -----------------------------------------------------------------------------------


def outcomes_in(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, str | None, CacheOutcome]]:
    """Yield task name, tag and outcome of each valid row."""
    for row in rows:
        name = text(row.get("task_name"))
        if name is None:
            continue
        try:
            outcome = CacheOutcome.from_message(row)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        yield name, text(row.get("tag")), outcome
