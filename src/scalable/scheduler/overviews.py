"""Overviews of one cluster, the numbers of its tasks by name and state, and its latest events."""

from __future__ import annotations

import asyncio
import heapq
import math
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

from scalable.model.cache_outcomes import CacheTally
from scalable.model.clusters import PoolStatus
from scalable.model.overview import (
    Events,
    Overview,
    PoolOverview,
    PredictedEnd,
    RunningTask,
    TaskCounts,
    TaskOverview,
    TaskSums,
    WorkerOverview,
)
from scalable.protocol.events import Event, scaling_row
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.pools import UNTAGGED
from scalable.runs.calls import FOUND
from scalable.scaling.remaining import RemainingCalls, RemainingPool, predict_rest
from scalable.scheduler.cluster_state import ClusterState, backlog_of, name_of
from scalable.scheduler.recorder import failure_rows
from scalable.scheduler.task_log import (
    READY,
    EndedTask,
    HeardOutcomes,
    Listener,
    LoggedTask,
    TaskLog,
    running_tasks,
)
from scalable.views.cluster_text import sample_of

# Latest events ------------------------------------------------------------------------------------

#: Number of the latest events that are kept of each kind.
KEPT = {"decisions": 500, "failures": 500, "spans": 20_000}
#: Number of samples that are kept. If there are more, every second one is dropped.
KEPT_SAMPLES = 1_000
#: Seconds between two samples, as long as none was dropped.
SAMPLES_INTERVAL_S = 1.0
#: Largest numbers of spans and failures in one answer, the newest ones. A reader that polls each
#: second misses none unless there are more in a second.
SPANS_AT_ONCE, FAILURES_AT_ONCE = 1_000, 100
#: Largest product of samples and pools in one answer. If there are more samples, some at even
#: distances are returned.
SAMPLED_POOLS_AT_ONCE = 4_000

KINDS = frozenset([*KEPT, "samples"])


class RecentEvents:
    """Keeps the latest events of each kind, numbered in order (``seq`` is the last number)."""

    def __init__(self) -> None:
        self.seq = 0
        self._kept: dict[str, deque[tuple[int, Any]]] = {
            kind: deque(maxlen=kept) for kind, kept in KEPT.items()
        }
        self._dropped = dict.fromkeys(KEPT, 0)
        self._samples: list[tuple[int, Mapping[str, Any]]] = []
        self._samples_apart_s = SAMPLES_INTERVAL_S

    def add(self, kind: str, event: Any) -> None:
        """Add an event of one of the kinds in :data:`KEPT`."""
        self.seq += 1
        kept = self._kept[kind]
        if len(kept) == kept.maxlen:
            self._dropped[kind] = kept[0][0]
        kept.append((self.seq, event))

    def sample(self, sample: Mapping[str, Any]) -> None:
        """Add a sample of the pools with its time ``at``, unless the last one is too recent."""
        apart_s = self._samples_apart_s
        if self._samples and sample["at"] - self._samples[-1][1]["at"] < 0.9 * apart_s:
            return
        self.seq += 1
        self._samples.append((self.seq, sample))
        if len(self._samples) > KEPT_SAMPLES:
            self._samples = self._samples[::2]
            self._samples_apart_s = 2 * apart_s

    def failures(self) -> list[dict[str, Any]]:
        """Return the kept failures, the newest first."""
        return [row for _, row in reversed(self._kept["failures"])]

    def since(self, seq: int, kinds: frozenset[str] = KINDS) -> Events:
        """Return the given kinds of events after a number. An unknown number counts as 0."""
        seq = seq if seq <= self.seq else 0
        found: dict[str, list[Any]] = {}
        for kind in kinds & KEPT.keys():
            newest_first = takewhile(lambda numbered: numbered[0] > seq, reversed(self._kept[kind]))
            found[kind] = [event for _, event in newest_first][::-1]
        if "samples" in kinds:
            samples = [sample for number, sample in self._samples if number > seq]
            found["samples"] = _thinned(samples)
        missed = any(self._dropped[kind] > seq for kind in kinds & KEPT.keys())
        for kind, most in (("spans", SPANS_AT_ONCE), ("failures", FAILURES_AT_ONCE)):
            if len(found.get(kind, ())) > most:
                found[kind] = found[kind][-most:]
                missed = True
        return Events(self.seq, missed, **found)


def _thinned(samples: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return as many evenly spaced samples as fit into one answer, including the last."""
    values = sum(len(sample.get("pools", ())) for sample in samples)
    apart = max(1, math.ceil(values / SAMPLED_POOLS_AT_ONCE))
    return samples[::-apart][::-1]


# Numbers of tasks ---------------------------------------------------------------------------------

#: Number of task names that have a row each. Tasks of other names are counted by the prefix of the
#: name, or, with too many prefixes, in one row.
KEPT_NAMES = 1000
#: Number of lasting rows, the rows of readers that record them over time: of the first names, and
#: of prefixes. Their sums never fall.
LASTING_ROWS = 100
#: Maximum number of characters of a task name. The rest is cut off.
LONGEST_NAME = 200
OTHERS = "(other names)"
#: Prefix of a name, up to the first digit.
_BEGINNING = re.compile(r"\D+")

# Phases of a task.
_BLOCKED, _READY, _DONE, _FAILED, _CANCELLED, _CACHED = range(6)


def row_for(name: str, tag: str | None, rows: Collection[Any], most: int) -> str:
    """Return the name of the row for another name, up to ``most`` of names and of prefixes."""
    if len(rows) < most:
        return name
    if name != OTHERS and not name.endswith("*"):
        beginning = _BEGINNING.match(name)
        name = f"{beginning[0] if beginning else ''}*"  # such as ``fit-*``
    return name if (name, tag) in rows or len(rows) < 2 * most else OTHERS


class NameRow:
    """Tasks of one name and tag. ``names`` is the number of names that share the row.
    ``phases`` counts blocked, ready or running, done, failed, cancelled, and cache hits. ``logs``
    and ``squares`` sum the logarithms of the running times and their squares.
    """

    __slots__ = ("counted", "lasting", "logs", "name", "names", "phases", "squares", "sums", "tag")

    def __init__(self, name: str, tag: str | None, lasting: str) -> None:
        self.name = name
        self.tag = tag
        #: Name of the lasting row that includes this one.
        self.lasting = lasting
        self.names = 0
        self.phases = [0] * 6
        self.sums = TaskSums()
        self.logs = self.squares = 0.0
        # What is stored for a task in each phase: one object for all tasks of the row.
        self.counted = tuple((self, phase, 1) for phase in range(6))

    @property
    def unfinished(self) -> int:
        return self.phases[_BLOCKED] + self.phases[_READY]

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithms of the running times, or None for fewer than two."""
        measured = self.sums["duration_s"].tasks
        if measured < 2:
            return None
        variance = (self.squares - self.logs**2 / measured) / (measured - 1)
        return math.sqrt(max(0.0, variance))

    def measure(self, values: Mapping[str, float | None], count: int = 1) -> None:
        """Add the measurements of one task, or of all tasks of a bundle."""
        self.sums.measure(values, count)
        seconds = values.get("duration_s")
        if seconds is not None:
            log = math.log(max(seconds / count, 1e-6))
            self.logs += log * count
            self.squares += log * log * count


class NameCounts(Listener):
    """Counts the tasks of a scheduler by name and phase. A bundle counts as its tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._rows: dict[tuple[str, str | None], NameRow] = {}
        self._named: dict[tuple[str, str | None], NameRow] = {}
        self._lasting = set[tuple[str, str | None]]()
        self._log = TaskLog.of(scheduler)
        self.cached_calls = CacheTally()
        for task in scheduler.tasks.values():
            if task.state in READY:
                self.ready(self._log.call(task.key))
            elif task.state == "waiting":
                self.waiting(self._log.call(task.key))
        self._log.listen(self)

    def __iter__(self) -> Iterator[NameRow]:
        return iter(self._rows.values())

    def row_for(self, name: str, tag: str | None) -> NameRow:
        """Return the row for a name and tag, creating it if necessary."""
        name = name[:LONGEST_NAME]
        row = self._named.get((name, tag))
        if row is not None:
            return row
        shown = row_for(name, tag, self._rows, KEPT_NAMES)
        row = self._rows.get((shown, tag))
        if row is None:
            lasting = row_for(shown, tag, self._lasting, LASTING_ROWS)
            self._lasting.add((lasting, tag))
            row = self._rows[shown, tag] = NameRow(shown, tag, lasting)
        if len(self._named) < 20 * KEPT_NAMES:  # later names are resolved by the rule above again
            self._named[name, tag] = row
            row.names += 1
        return row

    # Events of the task log -----------------------------------------------------------------------

    def submitted(self, calls: list[LoggedTask]) -> None:
        row = self.row_for(calls[0].name, calls[0].tag)
        blocked, new = row.counted[_BLOCKED], 0
        for call in calls:
            if call.counted is None:
                if call.bundle is None:
                    call.counted, new = blocked, new + 1
                else:
                    self._put(call, _BLOCKED)
        row.phases[_BLOCKED] += new

    def waiting(self, call: LoggedTask) -> None:
        self._put(call, _BLOCKED)

    left = waiting  # released before it finished, it may run again

    def ready(self, call: LoggedTask) -> None:
        if call.counted is None or call.counted[2] != 1:
            self._put(call, _READY)
            return
        row, before, _ = call.counted  # of a single task: ten thousand may arrive at once
        row.phases[before] -= 1
        row.phases[_READY] += 1
        call.counted = row.counted[_READY]

    def ended(self, end: EndedTask) -> None:
        call, bundle = end.call, end.measured.bundle
        if call.is_known:
            return
        if call.bundle is None and not end.is_hit:
            row = self._put(call, _DONE if end.succeeded else _FAILED)
            if row is not None:
                row.measure(end.measurements)
            return
        row, phase, count = call.counted or (self.row_for(call.name, call.tag), _DONE, 0)
        row.phases[phase] -= count
        call.counted = (row, _DONE, 0)
        if end.is_hit:  # counted with its outcome
            return
        if bundle is None:
            row.phases[_FAILED] += sum(failed.count for failed in end.failures)
            return
        row.phases[_CANCELLED] += bundle.get("cancelled", 0)
        if bundle["calls"]:
            row.phases[_DONE] += bundle["calls"] - bundle["failed"]
            row.phases[_FAILED] += bundle["failed"]
            if bundle.get("rows"):
                for state, _, values in end.in_bundle():
                    if state != FOUND:
                        row.measure(values)
            else:
                row.measure({**end.measurements, "duration_s": bundle["total_s"]}, bundle["calls"])

    def remembered(self, heard: HeardOutcomes) -> None:
        """Add up cache outcomes, and count the tasks that did not run as hits."""
        for outcome in heard.outcomes:
            self.cached_calls.add(heard.name[:LONGEST_NAME], outcome)
        found = sum(outcome.count for outcome in heard.outcomes if outcome.is_hit)
        if found:
            self.row_for(heard.name, heard.tag).phases[_CACHED] += found

    def forgotten(self, call: LoggedTask) -> None:
        if call.counted is None:
            return
        row, phase, count = call.counted
        if phase in (_BLOCKED, _READY):
            row.phases[phase] -= count
            if call.bundle is None or call.is_cancelled_bundle:
                row.phases[_CANCELLED] += count

    def _put(self, call: LoggedTask, phase: int) -> NameRow | None:
        """Count a task in a phase, and return its row, or None for a known result."""
        row: NameRow
        if call.is_known:
            return None
        if call.counted is None:
            count = call.calls
            row = self.row_for(call.name, call.tag)
        else:
            row, before, count = call.counted
            if before == phase:
                return row
            row.phases[before] -= count
        row.phases[phase] += count
        call.counted = row.counted[phase] if count == 1 else (row, phase, count)
        return row


# Timeline -----------------------------------------------------------------------------------------

#: Maximum number of characters of a failure's field.
LONGEST_TEXT = 4_000
#: Maximum number of characters of a task's key in a span.
LONGEST_KEY = 300
#: Tasks shorter than this, in seconds, are joined with the task before them on the same worker, if
#: it has the same name. The gap between the two must be shorter too.
JOINED_S = 0.02
#: Number of failure classes that are counted separately. The others share one name.
COUNTED_CLASSES = 50
OTHER_CLASSES = "(other classes)"
#: Maximum number of characters of a failure class. The rest is cut off.
LONGEST_CLASS = 100


def _shortened_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a failure's row with shortened strings. Tracebacks keep their tail."""
    short: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            short[key] = _shortened_row(value)
        elif isinstance(value, str):
            short[key] = value[-LONGEST_TEXT:] if key == "traceback" else value[:LONGEST_TEXT]
        else:
            short[key] = value
    return short


# Overviews ----------------------------------------------------------------------------------------

#: Seconds for which a computed overview is reused for all readers.
FRESH_S = 0.5
#: Number of rows of task names in an overview. The others are summed up in one row per pool.
SHOWN_NAMES = 200
#: Number of reasons for leaving workers in a pool's overview. The most frequent are kept.
SHOWN_REASONS = 10
#: Number of running tasks in an overview.
SHOWN_RUNNING = 50


@dataclass
class _Load:
    """Use of each pool, and number and elapsed seconds of running tasks by :class:`NameRow`.
    ``pools`` counts by tag connected workers, busy ones, slots and used slots.
    """

    pools: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: Reasons of leaving workers by tag.
    leaving: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    running: Counter[NameRow] = field(default_factory=Counter)
    elapsed_s: Counter[NameRow] = field(default_factory=Counter)
    calls: list[tuple[float, TaskState]] = field(default_factory=list)


class Overviews(Listener):
    """Builds the overviews of one cluster, and serves them to readers.
    ``facts`` are constant, such as ``name`` and ``target``. ``expected_s`` has the manifest's
    running times by task name.
    """

    def __init__(self, cluster: ClusterState) -> None:
        scheduler = cluster.scheduler
        self.facts: dict[str, Any] = {"started_at": time.time()}
        self.expected_s: Mapping[str, float] = {}
        self.recent = RecentEvents()
        self._cluster = cluster
        self._scheduler = scheduler
        self._log = TaskLog.of(scheduler)
        self._names = NameCounts(scheduler)
        #: Failures by class; changes of desired counts by tag and action; their last rows by tag.
        self._failures: Counter[str] = Counter()
        self._changes: dict[str, Counter[str]] = {}
        self._decided: dict[str, dict[str, Any]] = {}
        self._log.listen(self)
        self._last: Overview | None = None
        self._rows: list[TaskOverview] = []
        self._made_at = 0.0
        cluster.event_listeners.append(self.event)
        cluster.demand.listeners.append(self.scaled)
        offer(scheduler, {Handler.OVERVIEW: self.answer_in_turns})

    async def answer_in_turns(
        self, since: int | None = None, *, fresh_s: float = FRESH_S, **wanted: Any
    ) -> dict[str, Any]:
        """Return :meth:`answer`, computed in two turns of the scheduler's event loop."""
        self.present(fresh_s)
        await asyncio.sleep(0)
        return self.answer(since, fresh_s=math.inf, **wanted)

    def answer(
        self,
        since: int | None = None,
        kinds: Iterable[str] = tuple(sorted(KINDS)),
        *,
        lasting: bool = False,
        fresh_s: float = FRESH_S,
    ) -> dict[str, Any]:
        """Return ``overview`` and ``events`` (None without ``since``) as plain JSON values.
        ``since`` is the number of the reader's last event, or 0 for all. With ``lasting``, the rows
        of task names have stable names, and their sums never fall.
        """
        overview = self.present(fresh_s)
        if lasting:
            overview = replace(overview, tasks=self._lasting())
        events = None if since is None else self.recent.since(since, frozenset(kinds))
        return {
            "overview": overview.to_dict(),
            "events": None if events is None else events.to_dict(),
        }

    def sample(self) -> None:
        overview = self.present()
        self.recent.sample({"at": round(overview.at, 3), "pools": sample_of(overview.pools)})

    def present(self, fresh_s: float = FRESH_S) -> Overview:
        """Return an overview that is at most ``fresh_s`` seconds old."""
        now = time.monotonic()
        if self._last is None or now - self._made_at > fresh_s:
            self._last = self._new_overview()
            self._made_at = now
        return self._last

    # Events of the task log -----------------------------------------------------------------------

    def ended(self, end: EndedTask) -> None:
        timed = end.measured
        if end.ran and timed.began is not None and timed.ended is not None and end.address:
            self._span(end, end.address, timed.began, timed.ended)
        if not end.succeeded or timed.bundle is not None:
            self._failed(failure_rows(end))

    def _span(self, end: EndedTask, address: str, began: float, ended: float) -> None:
        bundle, record = end.measured.bundle, self._log.workers.at(address)
        failed = not end.succeeded or bool(bundle and bundle["failed"])
        last = None if record is None else record.span
        name, key = end.call.name[:LONGEST_NAME], str(end.call.key)[:LONGEST_KEY]
        short = ended - began < JOINED_S
        if (
            last is not None
            and short
            and last[1] == name
            and last[4] == failed
            and 0 <= began - last[3] < JOINED_S
        ):
            last[3] = ended
            last[5] += 1
            last[6] = key
            return
        span = [address if record is None else record.name, name, began, ended, failed, 1, key]
        if record is not None and record.state is not None:
            record.span = span
        self.recent.add("spans", span)

    # Other events ---------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Add the failure of a pool or worker, if a manager's event reports one."""
        if event.get("stream") == "failures":
            self._failed([{key: value for key, value in event.items() if key != "stream"}])

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        row = scaling_row(tag, before, after, reason, source)
        self._changes.setdefault(tag, Counter())[row["action"]] += 1
        self._decided[tag] = row
        self.recent.add("decisions", row)

    def _failed(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            name = str(row["failure_class"])[:LONGEST_CLASS]
            if name not in self._failures and len(self._failures) >= COUNTED_CLASSES:
                name = OTHER_CLASSES
            self._failures[name] += int(row.get("count", 1))
            self.recent.add("failures", _shortened_row(row))

    # Parts of an overview -------------------------------------------------------------------------

    def _new_overview(self) -> Overview:
        status = self._cluster.status()
        load = self._load(status["pools"])
        backlog = self._backlog(status["pools"])
        tasks = self._rows = self._tasks(load, backlog)
        now = time.time()
        lasting = {key: status[key] for key in ("state", "reason", "ends_at", "idle_ends_at")}
        clients = [name for name in self._scheduler.clients if "-worker-" not in name]
        return Overview(
            at=now,
            seq=self.recent.seq,
            cluster={**self.facts, **lasting},
            pools=self._pools(status, load, tasks),
            tasks=_shortened(tasks),
            running=tuple(self._running_calls(load.calls)),
            managers=tuple(status["managers"]),
            workers=len(self._scheduler.workers),
            clients=len(clients) - ("fire-and-forget" in clients),
            end=self._end(now, status["pools"], load, backlog),
            cost=status["cost"],
            scaled={tag: dict(actions) for tag, actions in self._changes.items()},
            failures=dict(self._failures),
            reruns=dict(self._log.reruns),
            remembered=self._names.cached_calls.totals(),
        )

    def _load(self, pools: Mapping[str, Any]) -> _Load:
        load = _Load()
        for ws in self._scheduler.workers.values():
            tag = _tag_of(ws, pools)
            use = load.pools[tag]
            use["workers"] += 1
            use["slots"] += int(ws.resources.get(tag, ws.nthreads))
            use["busy"] += bool(ws.processing)
            if reason := self._cluster.removals.why(ws):
                load.leaving[tag][reason] += 1
            for task, elapsed in running_tasks(ws):
                load.calls.append((elapsed, task))
                use["used"] += int((task.resource_restrictions or {}).get(tag, 1))
                call = self._log.call(task.key)
                if call.counted is not None:
                    call.seen_running = True  # a bundle forgotten after that counts as cancelled
                    row = call.counted[0]
                    load.running[row] += 1
                    load.elapsed_s[row] += elapsed  # type: ignore[assignment]
        return load

    def _running_calls(self, calls: list[tuple[float, TaskState]]) -> Iterator[RunningTask]:
        for elapsed, task in heapq.nlargest(SHOWN_RUNNING, calls, key=lambda each: each[0]):
            call, worker = self._log.call(task.key), task.processing_on
            place = "" if worker is None else str(worker.name)
            name, calls_in = call.name[:LONGEST_NAME], 0 if call.bundle is None else call.calls
            yield RunningTask(str(task.key), name, call.tag, place, round(elapsed, 3), calls_in)

    def _backlog(self, pools: Mapping[str, Any]) -> Counter[NameRow]:
        queued: Counter[NameRow] = Counter()
        for tag in [*pools, UNTAGGED]:
            for name, slots in backlog_of(self._scheduler, tag).items():
                queued[self._names.row_for(name, tag or None)] += slots
        return queued

    def _tasks(self, load: _Load, backlog: Counter[NameRow]) -> list[TaskOverview]:
        tasks = []
        for row in self._names:
            blocked, ready, *ended = row.phases
            running = min(load.running[row], ready)
            counts = TaskCounts(running, ready - running + backlog[row], blocked, *ended)
            sums = TaskSums(row.sums)  # a copy: the row's will change
            tasks.append(TaskOverview(row.name, row.tag, counts, sums, max(1, row.names)))
        return tasks

    def _lasting(self) -> tuple[TaskOverview, ...]:
        sums: dict[tuple[str, str | None], TaskOverview] = {}
        for row, task in zip(self._names, self._rows, strict=False):  # rows are only added
            key = row.lasting, row.tag
            sums[key] = sums[key] + task if key in sums else replace(task, name=row.lasting)
        return tuple(sums.values())

    def _pools(
        self, status: Mapping[str, Any], load: _Load, tasks: Iterable[TaskOverview]
    ) -> dict[str, PoolOverview]:
        counts: defaultdict[str, TaskCounts] = defaultdict(TaskCounts)
        for task in tasks:
            counts[task.tag or UNTAGGED] += task.counts
        bounds = self._cluster.adaptive_bounds()
        costs = (status["cost"] or {}).get("pools", {})
        pools = {tag: PoolStatus.from_dict(pool) for tag, pool in status["pools"].items()}
        if UNTAGGED in load.pools:
            workers = load.pools[UNTAGGED]["workers"]
            pools[UNTAGGED] = PoolStatus(wanted=workers, running=workers)
        return {
            tag: PoolOverview(
                pool,
                busy=load.pools[tag]["busy"],
                idle=load.pools[tag]["workers"] - load.pools[tag]["busy"],
                used_slots=load.pools[tag]["used"],
                slots=load.pools[tag]["slots"],
                queued=counts[tag].queued,
                blocked=counts[tag].blocked,
                adaptive=bounds.get(tag),
                cost=costs.get(tag),
                leaving=dict(load.leaving[tag].most_common(SHOWN_REASONS)),
                decided=self._decided.get(tag),
            )
            for tag, pool in pools.items()
        }

    def _end(
        self, now: float, pools: Mapping[str, Any], load: _Load, backlog: Counter[NameRow]
    ) -> PredictedEnd:
        calls: dict[str, list[RemainingCalls]] = {}
        for row in self._names:
            count = row.unfinished + backlog[row]
            mean_s, measured = row.sums.mean("duration_s"), row.sums["duration_s"].tasks
            if count or measured:  # finished tasks predict the unfinished ones
                known_s = mean_s if measured else self.expected_s.get(row.name)
                remaining = RemainingCalls(
                    row.name, count, known_s, row.spread, measured, load.elapsed_s[row]
                )
                calls.setdefault(row.tag or UNTAGGED, []).append(remaining)
        slots = {tag: load.pools[tag]["slots"] for tag in calls}
        for tag in calls.keys() & pools.keys():
            slots[tag] += pools[tag]["launching"] * pools[tag]["slots"]
        if UNTAGGED in calls:  # tasks without a tag run anywhere
            slots[UNTAGGED] = sum(use["slots"] for use in load.pools.values())
        rest = predict_rest([RemainingPool(tag, slots[tag], calls[tag]) for tag in calls])
        if rest.seconds is None or rest.low is None or rest.high is None:
            return PredictedEnd(reason=rest.reason)
        return PredictedEnd(now + rest.seconds, now + rest.low, now + rest.high, rest.reason)


def _shortened(tasks: list[TaskOverview]) -> tuple[TaskOverview, ...]:
    """Return the rows, unfinished and failed tasks first. Rows beyond the limit are summed up."""
    ranked = sorted(tasks, key=_rank)
    others: dict[str | None, TaskOverview] = {}
    for task in ranked[SHOWN_NAMES:]:
        others[task.tag] = others[task.tag] + task if task.tag in others else task
    rest = [replace(row, name=f"({row.names} other names)") for row in others.values()]
    return (*ranked[:SHOWN_NAMES], *rest)


def _rank(task: TaskOverview) -> tuple[bool, int, int, str]:
    counts = task.counts
    return not counts.running, -counts.unfinished, -counts.failed, task.name


# Single workers -----------------------------------------------------------------------------------

#: Largest number of workers in one answer. It blocks the event loop for a few milliseconds.
WORKERS_AT_ONCE = 250
#: Number of task names of a worker, and maximum number of characters of each.
SHOWN_TASKS, LONGEST_TASK = 3, 100


def worker_rows(
    cluster: ClusterState, tag: str | None = None, first: int = 0, count: int = WORKERS_AT_ONCE
) -> dict[str, Any]:
    """Return ``workers``, ordered by pool and name, and their ``total`` number.
    ``tag`` is "" for the workers without a tag, and None for all workers. The answer skips
    ``first`` workers, and has at most ``count`` (limited by ``WORKERS_AT_ONCE``).
    """
    pools = cluster.pools()
    tagged = [(_tag_of(ws, pools), ws) for ws in cluster.scheduler.workers.values()]
    meant = [(own, ws) for own, ws in tagged if tag is None or own == tag]
    meant.sort(key=lambda each: (each[0], str(each[1].name)))
    chosen = islice(meant, max(0, first), max(0, first) + min(count, WORKERS_AT_ONCE))
    rows = [_worker_row(cluster, *each).to_dict() for each in chosen]
    return {"total": len(meant), "workers": rows}


def _worker_row(cluster: ClusterState, tag: str, ws: WorkerState) -> WorkerOverview:
    running = used = 0
    names: dict[str, None] = {}
    for task, _ in running_tasks(ws):
        running += 1
        used += int((task.resource_restrictions or {}).get(tag, 1))
        names[name_of(task)[:LONGEST_TASK]] = None
    leaves = cluster.removals.drains(ws)
    paused = ws.status is Status.paused
    return WorkerOverview(
        name=str(ws.name),
        tag=tag or None,
        address=ws.address,
        state="leaving" if leaves else "paused" if paused else "running",
        running=running,
        assigned=len(ws.processing) - running,
        used_slots=used,
        slots=int(ws.resources.get(tag, ws.nthreads)),
        memory=int(ws.metrics.get("memory", 0)),
        memory_limit=ws.memory_limit,
        tasks=tuple(islice(names, SHOWN_TASKS)),
    )


def _tag_of(worker: WorkerState, pools: Mapping[str, Any]) -> str:
    return next((tag for tag in worker.resources if tag in pools), UNTAGGED)
