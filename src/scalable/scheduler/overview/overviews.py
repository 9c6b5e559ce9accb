"""Overviews of one cluster, for all readers."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, Protocol

from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.model.clusters import PoolStatus
from scalable.model.overview import (
    CallCounts,
    Overview,
    PoolOverview,
    PredictedEnd,
    RunningCall,
    TaskOverview,
)
from scalable.protocol.events import Event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.pools import UNTAGGED
from scalable.scaling.remaining import RemainingCalls, RemainingPool, predict_rest
from scalable.scheduler.demand import Demand
from scalable.scheduler.departures import Departures
from scalable.scheduler.ledger import Call, Ledger
from scalable.scheduler.overview.call_counts import (
    LONGEST_NAME,
    OTHERS,
    NameCounts,
    NameRow,
    beginning_of,
)
from scalable.scheduler.overview.recent import KINDS, RecentEvents
from scalable.scheduler.overview.timeline import Timeline
from scalable.scheduler.running import running_tasks

#: Seconds for which an overview is returned to all readers.
FRESH_S = 0.5
#: Number of rows of task names in an overview. The others are summed up in one row per pool.
SHOWN_NAMES = 200
#: Number of reasons for leaving workers that a pool shows, the most frequent ones.
SHOWN_REASONS = 10
#: Number of running tasks in an overview.
SHOWN_RUNNING = 50


class Watched(Protocol):
    """Cluster that is shown, usually a controller."""

    scheduler: Scheduler
    demand: Demand
    departures: Departures
    event_listeners: list[Callable[[Event], None]]

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and its managers."""

    def adaptive_bounds(self) -> Mapping[str, tuple[int, int | None]]:
        """Map the tags of adaptive pools to minimum and maximum."""


@dataclass
class _Use:
    """Use of one pool: connected and busy workers, and total and used slots."""

    workers: int = 0
    busy: int = 0
    slots: int = 0
    used_slots: int = 0
    leaving: Counter[str] = field(default_factory=Counter)


@dataclass
class _Load:
    """Running tasks by pool, and their numbers and elapsed seconds by row of names."""

    pools: dict[str, _Use] = field(default_factory=dict)
    running: Counter[NameRow] = field(default_factory=Counter)
    elapsed_s: Counter[NameRow] = field(default_factory=Counter)
    calls: list[tuple[float, TaskState]] = field(default_factory=list)

    def use(self, tag: str) -> _Use:
        return self.pools.setdefault(tag, _Use())


class Overviews:
    """Makes the overviews of one cluster, and answers readers.
    ``facts`` do not change, such as ``name`` and ``target``. ``expected_s`` maps task names to the
    manifest's running times, and ``reruns`` maps reasons to recorded restarts of tasks.
    """

    def __init__(self, cluster: Watched) -> None:
        scheduler = cluster.scheduler
        self.facts: dict[str, Any] = {"started_at": time.time()}
        self.expected_s: Mapping[str, float] = {}
        self.reruns: Mapping[str, int] = {}
        self.recent = RecentEvents()
        self._cluster = cluster
        self._scheduler = scheduler
        self._names = NameCounts(scheduler)
        self._timeline = Timeline(scheduler, self.recent)
        self._last: Overview | None = None
        self._rows: list[TaskOverview] = []
        self._lasting = LastingNames()
        self._made_at = 0.0
        Ledger.of(scheduler).listen(self._names)
        Ledger.of(scheduler).listen(self._timeline)
        cluster.event_listeners.append(self._timeline.event)
        cluster.demand.listeners.append(self._timeline.scaled)
        offer(scheduler, {Handler.OVERVIEW: self.answer_in_turns})

    async def answer_in_turns(
        self, since: int | None = None, *, fresh_s: float = FRESH_S, **wanted: Any
    ) -> dict[str, Any]:
        """Return :meth:`answer`, in two turns of the scheduler's event loop."""
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
        """Return the present overview, and events, as plain JSON values.
        ``since`` is the number of the reader's last event, 0 for all, None for no events.
        ``lasting`` selects the rows of :class:`LastingNames`. The result has ``overview`` and
        ``events``, which may be None.
        """
        overview = self.present(fresh_s)
        if lasting:
            overview = replace(overview, tasks=self._lasting.of(self._rows))
        events = None if since is None else self.recent.since(since, frozenset(kinds))
        return {
            "overview": overview.to_dict(),
            "events": None if events is None else events.to_dict(),
        }

    def sample(self) -> None:
        overview = self.present()
        pools = {
            tag: [p.status.wanted, p.status.running, p.used_slots, p.slots, p.waiting]
            for tag, p in overview.pools.items()
        }
        self.recent.sample({"at": round(overview.at, 3), "pools": pools})

    def present(self, fresh_s: float = FRESH_S) -> Overview:
        """Return an overview that is at most ``fresh_s`` seconds old."""
        now = time.monotonic()
        if self._last is None or now - self._made_at > fresh_s:
            self._last = self._made()
            self._made_at = now
        return self._last

    # Parts of an overview -------------------------------------------------------------------------

    def _made(self) -> Overview:
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
            running=tuple(_running_calls(load.calls)),
            managers=tuple(status["managers"]),
            workers=len(self._scheduler.workers),
            clients=len(clients) - ("fire-and-forget" in clients),
            end=self._end(now, status["pools"], load, backlog),
            cost=status["cost"],
            scaled={tag: dict(actions) for tag, actions in self._timeline.changes.items()},
            failures=dict(self._timeline.failures),
            reruns=dict(self.reruns),
            remembered=self._names.remembered_calls.totals(),
        )

    def _load(self, pools: Mapping[str, Any]) -> _Load:
        load = _Load()
        for ws in self._scheduler.workers.values():
            tag = next((tag for tag in ws.resources if tag in pools), UNTAGGED)
            use = load.use(tag)
            use.workers += 1
            use.slots += int(ws.resources.get(tag, ws.nthreads))
            use.busy += bool(ws.processing)
            if reason := self._cluster.departures.why(ws):
                use.leaving[reason] += 1
            for task, elapsed in running_tasks(ws):
                load.calls.append((elapsed, task))
                use.used_slots += int((task.resource_restrictions or {}).get(tag, 1))
                row = self._names.row_of(task.key)
                if row is not None:
                    self._names.runs(task.key)
                    load.running[row] += 1
                    load.elapsed_s[row] += elapsed  # type: ignore[assignment]
        return load

    def _backlog(self, pools: Mapping[str, Any]) -> Counter[NameRow]:
        relay = getattr(self._scheduler, "relay", None)
        waiting: Counter[NameRow] = Counter()
        if relay is None:
            return waiting
        for tag in [*pools, UNTAGGED]:
            for name, slots in relay.backlog(tag).items():
                waiting[self._names.row_for(name, tag or None)] += slots
        return waiting

    def _tasks(self, load: _Load, backlog: Counter[NameRow]) -> list[TaskOverview]:
        tasks = []
        for row in self._names:
            running = min(load.running[row], row.unfinished)
            waiting = row.unfinished - running + backlog[row]
            counts = CallCounts(running, waiting, *row.ended)
            tasks.append(
                TaskOverview(
                    row.name,
                    row.tag,
                    counts,
                    row.mean_s,
                    max(1, row.names),
                    row.measured,
                    row.total_s,
                    row.queued,
                    row.queued_s,
                    row.queued_s / row.queued if row.queued else None,
                )
            )
        return tasks

    def _pools(
        self, status: Mapping[str, Any], load: _Load, tasks: Iterable[TaskOverview]
    ) -> dict[str, PoolOverview]:
        waiting: Counter[str] = Counter()
        for task in tasks:
            waiting[task.tag or UNTAGGED] += task.counts.waiting
        bounds = self._cluster.adaptive_bounds()
        costs = (status["cost"] or {}).get("pools", {})
        pools = {tag: PoolStatus.from_dict(pool) for tag, pool in status["pools"].items()}
        if UNTAGGED in load.pools:
            workers = load.pools[UNTAGGED].workers
            pools[UNTAGGED] = PoolStatus(wanted=workers, running=workers)
        return {
            tag: PoolOverview(
                pool,
                busy=load.use(tag).busy,
                idle=load.use(tag).workers - load.use(tag).busy,
                used_slots=load.use(tag).used_slots,
                slots=load.use(tag).slots,
                waiting=waiting[tag],
                adaptive=bounds.get(tag),
                cost=costs.get(tag),
                leaving=dict(load.use(tag).leaving.most_common(SHOWN_REASONS)),
                decided=self._timeline.decided.get(tag),
            )
            for tag, pool in pools.items()
        }

    def _end(
        self, now: float, pools: Mapping[str, Any], load: _Load, backlog: Counter[NameRow]
    ) -> PredictedEnd:
        calls: dict[str, list[RemainingCalls]] = {}
        for row in self._names:
            count = row.unfinished + backlog[row]
            if count or row.mean_s is not None:  # finished tasks predict the unfinished ones
                known_s = self.expected_s.get(row.name) if row.mean_s is None else row.mean_s
                remaining = RemainingCalls(
                    row.name, count, known_s, row.spread, row.measured, load.elapsed_s[row]
                )
                calls.setdefault(row.tag or UNTAGGED, []).append(remaining)
        slots = {tag: load.use(tag).slots for tag in calls}
        for tag in calls.keys() & pools.keys():
            slots[tag] += pools[tag]["launching"] * pools[tag]["slots"]
        if UNTAGGED in calls:  # tasks without a tag run anywhere
            slots[UNTAGGED] = sum(use.slots for use in load.pools.values())
        rest = predict_rest([RemainingPool(tag, slots[tag], calls[tag]) for tag in calls])
        if rest.seconds is None or rest.low is None or rest.high is None:
            return PredictedEnd(reason=rest.reason)
        return PredictedEnd(now + rest.seconds, now + rest.low, now + rest.high, rest.reason)


def _running_calls(calls: list[tuple[float, TaskState]]) -> Iterator[RunningCall]:
    for elapsed, task in heapq.nlargest(SHOWN_RUNNING, calls, key=lambda call: call[0]):
        call, worker = Call(task), task.processing_on
        place = "" if worker is None else str(worker.name)
        name, calls_in = call.name[:LONGEST_NAME], int((call.bundle or {}).get("calls", 0))
        yield RunningCall(str(task.key), name, call.tag, place, round(elapsed, 3), calls_in)


def _shortened(tasks: list[TaskOverview]) -> tuple[TaskOverview, ...]:
    """Return the rows, unfinished and failed tasks first, those beyond the limit summed up."""
    ranked = sorted(tasks, key=_rank)
    others: dict[str | None, TaskOverview] = {}
    for task in ranked[SHOWN_NAMES:]:
        known = others.get(task.tag)
        others[task.tag] = task if known is None else known + task
    rest = [replace(row, name=f"({row.names} other names)") for row in others.values()]
    return (*ranked[:SHOWN_NAMES], *rest)


def _rank(task: TaskOverview) -> tuple[bool, int, int, str]:
    counts = task.counts
    return not counts.running, -(counts.waiting + counts.running), -counts.failed, task.name


# Lasting names ------------------------------------------------------------------------------------

#: Number of task names that have a row each. Tasks of other names are counted by the prefix of the
#: name, in as many rows again, and then in one.
LASTING_ROWS = 100


class LastingNames:
    """Sums up rows of task names in few rows whose names and members never change.
    So a row's numbers of finished tasks never fall, as recorders of time series need it. The first
    names have a row each, later names share rows.
    """

    def __init__(self) -> None:
        self._row_of: dict[tuple[str, str | None], tuple[str, str | None]] = {}
        self._rows: set[tuple[str, str | None]] = set()

    def of(self, tasks: Iterable[TaskOverview]) -> tuple[TaskOverview, ...]:
        """Return the lasting rows with the numbers of the given ones."""
        sums: dict[tuple[str, str | None], list[float]] = {}
        for task in tasks:
            key = task.name, task.tag
            row = self._row_of.get(key) or self._row(*key)
            c = task.counts
            counts = c.running, c.waiting, c.done, c.failed, c.cancelled, c.found
            others = task.names, task.measured, task.queued, task.run_s, task.queued_s
            numbers = (*counts, *others)
            known = sums.get(row)
            # In lists for speed: rows of many names are summed up in the scheduler's event loop.
            sums[row] = list(numbers) if known is None else list(map(add, known, numbers))
        return tuple(_task(name, tag, numbers) for (name, tag), numbers in sums.items())

    def _row(self, name: str, tag: str | None) -> tuple[str, str | None]:
        row = self._row_of.get((name, tag))
        if row is None:
            row = name, tag
            if len(self._rows) >= LASTING_ROWS:
                row = beginning_of(name), tag
            if len(self._rows) >= 2 * LASTING_ROWS and row not in self._rows:
                row = OTHERS, tag
            self._rows.add(row)
            self._row_of[name, tag] = row
        return row


def _task(name: str, tag: str | None, numbers: Sequence[float]) -> TaskOverview:
    *whole, run_s, queued_s = numbers
    *counts, names, measured, queued = map(int, whole)
    mean_s = run_s / measured if measured else None
    mean_queued_s = queued_s / queued if queued else None
    times = measured, run_s, queued, queued_s, mean_queued_s
    return TaskOverview(name, tag, CallCounts(*counts), mean_s, names, *times)
