"""Explanations of why a cluster's tasks and pools wait, or why tasks failed, and views of tasks."""

from __future__ import annotations

import ast
import asyncio
import difflib
import heapq
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState, heartbeat_interval

from scalable import settings
from scalable.dask_compat.scheduler import (
    ask_task_states,
)
from scalable.dask_compat.tasks import (
    FailedTask,
    arguments_of,
    counts_of_waiting,
    fail_ready_task,
    usual_duration,
)
from scalable.frames import own_frame_in
from scalable.model import PoolStatus, Starting
from scalable.model.overview import TaskView
from scalable.protocol.events import FAILED_START, Event
from scalable.protocol.failures import shown_arguments
from scalable.protocol.handlers import Handler, WorkerHandler, offer, request
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.operations import TAG_ANNOTATION, WAITING_TOPIC
from scalable.protocol.pools import UNTAGGED, slots_of
from scalable.scaling.task_model import Kind, TaskModel
from scalable.scheduler.cluster_state import ClusterState, backlog_of, name_of
from scalable.scheduler.overviews import Overviews
from scalable.scheduler.task_log import TaskLog, failure_in, running_tasks
from scalable.units import counted
from scalable.views import explanation as said
from scalable.views.explanation import (
    Explanation,
    Explanations,
    Failure,
    PoolFacts,
    SlotHolder,
    TaskFacts,
    UnmetNeed,
    means_key,
)

logger = logging.getLogger("scalable.scheduler")

_T = TypeVar("_T")

#: Maximum numbers of a task's dependencies that are named, and that are examined.
SHOWN_NEEDED, LOOKED_NEEDED = 10, 1000
#: Maximum number of tasks examined to find those ahead of a task.
LOOKED_BEFORE = 20_000
#: Maximum number of characters of an error's message.
LONGEST_MESSAGE = 500
#: Maximum number of running tasks in the facts about a pool.
SHOWN_RUNNING = 20
#: States of needed tasks, in the order in which they are named.
_ORDER = ("failed", "needs", "no-worker", "lost", "assigned", "running")


def _capacity(worker: WorkerState, tag: str) -> int:
    return int(worker.resources.get(tag, 0)) if tag else worker.nthreads


def _before(task: TaskState, others: Iterable[TaskState]) -> dict[str, Any]:
    """Return how many of the first others go before a task, and the keys of some."""
    mine = task.priority
    if mine is None:
        return {}
    others = islice(others, LOOKED_BEFORE)
    before = [t for t in others if t.priority is not None and t.priority < mine]
    first = sorted(before, key=lambda t: t.priority or ())[:3] if len(before) < 1000 else []
    return {"before": len(before), "first": tuple(str(t.key) for t in first)}


def _need(task: TaskState) -> TaskFacts:
    """Return key, name, state and worker of a task whose result another one needs."""
    worker = task.processing_on
    states = {"no-worker": "no-worker", "queued": "no-worker", "erred": "failed", "memory": "lost"}
    state = states.get(task.state, "needs")
    if worker is not None:
        runs = any(task is other for other, _ in running_tasks(worker))
        state = "running" if runs else "assigned"
    where = "" if worker is None else str(worker.name)
    return TaskFacts(str(task.key), name_of(task), "", state, worker=where)


# Explanations -------------------------------------------------------------------------------------

#: Seconds that a worker has to report its tasks' states. Otherwise its last heartbeat counts.
ASK_TIMEOUT_S = 2.0
#: Maximum number of workers that are contacted for one explanation.
ASKED_WORKERS = 4
#: Maximum number of queued tasks that are examined, and of groups in an answer.
LOOKED_TASKS, SHOWN_GROUPS = 20_000, 50
#: Maps the state of a task on its worker to the state in explanations.
_ON_WORKER = {
    "executing": "running",
    "long-running": "running",
    "waiting": "fetching",
    "ready": "assigned",
    "constrained": "assigned",
}

#: Longest time in seconds that an explanation occupies the event loop without a break.
TURN_S = 0.005


def _alike(task: TaskState) -> tuple[Any, ...]:
    """Return what tasks have in common that wait for the same reason, from what is at hand."""
    given = task.annotations or {}
    return (
        task.state,
        given.get(TASK_ANNOTATION) or task.prefix.name,
        given.get(TAG_ANNOTATION),
        tuple((task.resource_restrictions or {}).items()),
        frozenset(task.worker_restrictions or ()),
    )


class Explainer:
    """Explains the pools and tasks of one cluster, as it is at the moment of one question."""

    def __init__(
        self,
        cluster: ClusterState,
        overviews: Overviews,
        cluster_name: str = "",
        statuses: Mapping[str, PoolStatus] | None = None,
    ) -> None:
        self._cluster, self._scheduler = cluster, cluster.scheduler
        self._overviews, self._log = overviews, TaskLog.of(cluster.scheduler)
        self._name = cluster_name or getattr(cluster.scheduler, "cluster_name", "")
        self._turn_began = time.monotonic()
        self._statuses = cluster.pools() if statuses is None else statuses
        self._pools: dict[str, PoolFacts] = {}

    async def _in_turns(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield items, and let other coroutines run every ``TURN_S`` seconds."""
        for item in items:
            if time.monotonic() - self._turn_began >= TURN_S:
                await asyncio.sleep(0)
                self._turn_began = time.monotonic()
            yield item

    async def explain(
        self,
        tag: str | None = None,
        key: Any = None,
        name: str | None = None,
        in_client: Mapping[str, Any] | None = None,
    ) -> Explanations:
        """Return explanations, by default of all pools and unfinished tasks.
        ``name`` is a tag, a key, a unique prefix of a key, or a task name. ``in_client`` has
        ``key``, ``tag`` and ``before`` of a task that is queued in its client.
        """
        if name is not None:
            tag, key = await self._meant(name)
        if in_client is not None:
            of, before = str(in_client["tag"]), int(in_client["before"])
            called = str(in_client["key"])
            waits = TaskFacts(called, called, of, "backlog", before=before, pool=self.pool(of))
            return Explanations(tasks=self._explained(waits))
        if key is not None:
            return Explanations(tasks=self._explained(await self._task(key)))
        tags = [tag] if tag is not None else [t for t in self._statuses if t] or [UNTAGGED]
        counted_by, told = self._overviews.present(0.0).pools, list[Explanation]()
        async for each in self._in_turns(tags):
            queued = counted_by[each].queued if each in counted_by else 0
            self._pools[each] = replace(self.pool(each), queued=queued)
            told.append(said.explain_pool(self._pools[each]))
        return Explanations(tuple(told), self._explained(*await self._groups(tag)))

    def _explained(self, *facts: TaskFacts) -> tuple[Explanation, ...]:
        named = (replace(each, cluster_name=self._name) for each in facts)
        return tuple(map(said.explain_task, named))

    async def _meant(self, name: str) -> tuple[str | None, Any]:
        """Resolve a name to a tag or a key. The other element is None."""
        if name in self._statuses:
            return name, None
        if name in self._scheduler.tasks:
            return None, name
        by_key, by_name = list[TaskState](), list[TaskState]()  # bundles, too
        async for key, task in self._in_turns(list(self._scheduler.tasks.items())):
            if means_key(name, str(key)):
                by_key.append(task)
            elif name_of(task) == name:
                by_name.append(task)
        found = by_key or by_name
        exact = [task for task in found if str(task.key) == name]
        unended = [task for task in found if task.state not in ("memory", "erred", "forgotten")]
        failed = [task for task in found if task.state == "erred"]
        return None, next((task.key for task in exact or unended or failed or found), name)

    # One task -----------------------------------------------------------------------------------

    async def _task(self, key: Any) -> TaskFacts:
        task = self._scheduler.tasks.get(key)
        if task is None:
            return self._forgotten(str(key))
        state, lends = (await self._states([task])).get(key, ("", False))
        facts = self.task(task)
        if task.state != "processing":
            return facts
        exact = _ON_WORKER.get(state, facts.state)
        if exact == "running" != facts.state:
            return replace(self._running(facts, key), since_s=None, lends=lends)
        facts = replace(facts, state=exact, lends=lends)
        if exact == "assigned" and facts.pool is not None:
            return replace(facts, pool=await self._with_holders(facts.pool))
        return facts

    def _forgotten(self, name: str) -> TaskFacts:
        """Return the facts about tasks without futures by their key, key prefix or task name."""
        failures = self._overviews.recent.failures()
        rows = [row for row in failures if (row.get("details") or {}).get("task_id")]
        found = failed_tasks_named(name, rows, time.time())
        if found is not None:
            return found
        known = [tag for tag in self._statuses if tag]
        known += [task.name for task in self._overviews.present().tasks]
        known += getattr(self._scheduler, "tags_of_tasks", None) or ()
        known += [str(row["details"]["task_name"]) for row in rows]
        close = difflib.get_close_matches(name, dict.fromkeys(known), 2)
        return TaskFacts(name, name, UNTAGGED, "unknown", close=tuple(close))

    async def _with_holders(self, pool: PoolFacts) -> PoolFacts:
        """Mark the running tasks that hold their slots while waiting for other tasks."""
        tasks = (self._scheduler.tasks.get(each.key) for each in pool.running)
        parents = [t for t in tasks if t is not None and self._children_of(t.key)]
        on = await self._states(parents)
        holding = {str(key) for key, (_, lends) in on.items() if not lends}
        running = tuple(replace(each, holds=each.key in holding) for each in pool.running)
        return replace(pool, running=running)

    async def _states(self, tasks: Iterable[TaskState]) -> dict[Any, tuple[str, bool]]:
        """Map keys to each task's state on its worker, and to whether it has seceded."""
        workers: dict[Any, list[Any]] = {}
        for task in tasks:
            if task.processing_on is not None:
                workers.setdefault(task.processing_on, []).append(task.key)
        asked = (
            _answered(ws, ask_task_states(self._scheduler, ws, keys))
            for ws, keys in islice(workers.items(), ASKED_WORKERS)
        )
        answers = await asyncio.gather(*asked)
        return {key: each for answer in answers if answer for key, each in answer[1].items()}

    # Many tasks ---------------------------------------------------------------------------------

    async def _groups(self, tag: str | None) -> list[TaskFacts]:
        """Return the facts about the unfinished tasks of one pool or of all, grouped by reason."""
        groups: dict[tuple[Any, ...], tuple[TaskState, int]] = {}
        async for task in self._queued():
            call = self._log.call(task.key)
            same = call.held is None, *_alike(task)
            # The last stands for all, because the first ones may start while this yields turns.
            # A bundle counts as its tasks.
            groups[same] = task, groups.get(same, (task, 0))[1] + call.calls
        found = list[TaskFacts]()
        async for (_, state, *_), (task, count) in self._in_turns(groups.items()):
            if task.state != state or tag not in (None, self._tag(task)):
                continue
            facts = replace(self.task(task), count=count)
            if count > 1:  # the tasks ahead of this one are not those ahead of the others
                facts = replace(facts, before=0, first=())
            found.append(facts)
            if len(found) == SHOWN_GROUPS:
                break
        await asyncio.sleep(0)
        for of, pool in self._pools.items():
            for name, count in backlog_of(self._scheduler, of).items():
                found.append(TaskFacts(name, name, of, "backlog", count=count, pool=pool))
        return [*found, *self._blocked(tag)]

    async def _queued(self) -> AsyncIterator[TaskState]:
        """Yield at most ``LOOKED_TASKS`` queued tasks, starting with those without a worker."""
        nowhere, queued = list(self._scheduler.unrunnable), self._scheduler.queued
        ready = list(islice(chain(nowhere, queued), LOOKED_TASKS))
        left = LOOKED_TASKS - len(ready)
        async for task in self._in_turns(ready):
            if task.state in ("no-worker", "queued"):
                yield task
        async for worker in self._in_turns(list(self._scheduler.workers.values())):
            if left <= 0 or not worker.processing:
                continue
            running = {task for task, _ in running_tasks(worker)}
            assigned = list(islice(worker.processing, left))
            left -= len(assigned)
            async for task in self._in_turns(assigned):
                if task.processing_on is worker and task not in running:
                    yield task

    def _blocked(self, tag: str | None) -> list[TaskFacts]:
        counts = counts_of_waiting(self._scheduler)
        found: dict[str, TaskState] = {}
        for task in islice(self._scheduler.tasks.values(), LOOKED_TASKS) if counts else ():
            if task.state == "waiting" and task.prefix.name in counts:
                found.setdefault(task.prefix.name, task)
                if len(found) == min(len(counts), SHOWN_GROUPS):
                    break
        return [
            replace(self.task(task), count=counts[prefix])
            for prefix, task in found.items()
            if tag in (None, self._tag(task))
        ]

    # Facts about pools ----------------------------------------------------------------------------

    def pool(self, tag: str) -> PoolFacts:
        """Return the facts about a pool, which may be unknown."""
        if tag in self._pools:  # otherwise slow: it reads all workers of the pool
            return self._pools[tag]
        cluster, scheduler, now = self._cluster, self._scheduler, time.monotonic()
        pools, status = self._statuses, self._statuses.get(tag)
        managers = [m for m in cluster.managers if tag in m.attachment.pools or tag in m.report]
        workers = cluster.workers(tag, pools)
        if not workers and tag == UNTAGGED:
            workers = list(scheduler.workers.values())
        if status is None and workers:  # workers that no manager has started
            slots = max(_capacity(ws, tag) for ws in workers)
            status = PoolStatus(wanted=len(workers), running=len(workers), slots=slots)
        leaving = {
            str(ws.name): cluster.removals.why(ws) for ws in workers if cluster.removals.drains(ws)
        }
        working = [ws for ws in workers if str(ws.name) not in leaving]
        if status is not None:  # managers' reports arrive later than workers
            here = max(status.running, len(working) - status.suspended)
            status = replace(status, running=here)
        busy, running = self._load(working, tag)
        adaptive = cluster.adaptation.pools.get(tag)
        decision = None if adaptive is None else adaptive.decision
        starts = cluster.starts[tag]
        expected = [Starting(**m.attachment.starting).startup_s for m in managers]
        self._pools[tag] = PoolFacts(
            tag=tag,
            known_tags=tuple(sorted(pools)),
            status=status,
            managers=tuple(
                {"id": m.attachment.manager, "state": m.state(now), "silent_s": now - m.last_seen}
                for m in managers
            ),
            attached=len(cluster.managers),
            awaits_managers=cluster.awaits_managers,
            adaptive=None if adaptive is None else (adaptive.minimum, adaptive.maximum),
            requested=None if decision is None else decision.workers,
            decision="" if decision is None else decision.reason,
            held=cluster.demand.held,
            way_out=cluster.demand.way_out,
            ending=cluster.ending,
            cluster_name=self._name,
            detached=bool(getattr(scheduler, "cluster_name", "")),
            wanted_in_all=sum(pool.wanted for pool in pools.values()),
            # Each of several managers has a target with its own limit.
            max_workers=(
                getattr(scheduler, "max_workers", None) if len(cluster.managers) <= 1 else None
            ),
            limited_by=getattr(scheduler, "limited_by", "max_workers"),
            launching_s=starts.longest_s(now),
            usual_start_s=starts.typical_s(min(expected, default=0.0)) or None,
            leaving=leaving,
            paused=tuple(str(ws.name) for ws in working if ws.status is Status.paused),
            busy_slots=busy,
            slots=sum(_capacity(ws, tag) for ws in working),
            running=running,
        )
        return self._pools[tag]

    def _load(self, workers: list[WorkerState], tag: str) -> tuple[int, tuple[SlotHolder, ...]]:
        """Return a pool's taken slots, and the tasks that take them."""
        busy = 0
        oldest: list[tuple[float, TaskState, WorkerState]] = []
        for ws in workers:
            taken = 0
            for task, since_s in running_tasks(ws):
                taken += max(1, slots_of(task.resource_restrictions, tag))
                oldest.append((since_s, task, ws))
            busy += min(taken, _capacity(ws, tag))
        first = heapq.nlargest(SHOWN_RUNNING, oldest, key=lambda each: each[0])
        running = (
            SlotHolder(
                *(str(task.key), name_of(task), tag, str(ws.name), since_s),
                left_s=self._left_s(task, since_s),
            )
            for since_s, task, ws in first
        )
        return busy, tuple(running)

    def _left_s(self, task: TaskState, since_s: float) -> float | None:
        """Return the expected remaining seconds of a running task, or None if unknown."""
        model: TaskModel = self._cluster.adaptation.model
        kind = Kind(next(iter(task.resource_restrictions or ()), UNTAGGED), name_of(task))
        if model.knows(kind):
            return model.residual_s(kind, since_s)
        mean = usual_duration(task)
        return None if mean is None else max(0.0, mean - since_s)

    # Facts about tasks ----------------------------------------------------------------------------

    def _tag(self, task: TaskState) -> str:
        """Return the tag of a task's pool, or the first resource that it requires."""
        asked = [str((task.annotations or {}).get(TAG_ANNOTATION) or "")]
        asked += [str(resource) for resource in task.resource_restrictions or ()]
        first = next(filter(None, asked), UNTAGGED)
        return next((tag for tag in asked if tag and tag in self._statuses), first)

    def task(self, task: TaskState) -> TaskFacts:  # noqa: PLR0911 - a list of cases
        """Return the facts about a task."""
        call, tag = self._log.call(task.key), self._tag(task)
        bundle = 0 if call.bundle is None else call.calls
        told = TaskFacts(str(task.key), name_of(task), tag, "", bundle=bundle)
        if task.state in ("waiting", "released") and task.waiting_on:
            return replace(told, state="needs", **self._needs(task))
        if task.state in ("memory", "erred", "forgotten"):
            return self._ended(task, told)
        told = replace(told, pool=self.pool(tag))
        if task.state == "no-worker" and call.held is not None:
            return replace(told, state="backoff", next_try=call.held.next_try())
        if task.state not in ("queued", "processing"):
            since = self._scheduler.unrunnable.get(task)
            since_s = None if since is None else time.monotonic() - since
            return replace(told, state="no-worker", ask=self._unmet(task), since_s=since_s)
        ready_s = None if call.ready_at is None else max(0.0, time.time() - call.ready_at)
        told = replace(told, since_s=ready_s, parent=self._parent(call.parent))
        if (worker := task.processing_on) is None:
            return replace(told, state="queued", **_before(task, self._scheduler.queued))
        told, running = replace(told, worker=str(worker.name)), dict(running_tasks(worker))
        if (since_s := running.get(task)) is not None:
            left_s = self._left_s(task, since_s)
            return self._running(replace(told, since_s=since_s, left_s=left_s), task.key)
        before = _before(task, (t for t in worker.processing if t not in running))
        return replace(told, state="assigned", **before)

    def _running(self, told: TaskFacts, key: Any) -> TaskFacts:
        """Return the facts about a task as those of a running one, with its children."""
        children = [child.key for child in self._children_of(key)]
        child = str(children[0]) if children else ""
        return replace(told, state="running", children=len(children), child=child)

    def _unmet(self, task: TaskState) -> UnmetNeed:
        """Return the requirements of a task that no worker meets."""
        scheduler, asked = self._scheduler, task.resource_restrictions or {}
        pools = self._statuses
        able = [
            ws
            for ws in scheduler.workers.values()
            if all(ws.resources.get(name, 0) >= amount for name, amount in asked.items())
        ]
        tags = tuple(tag for tag in asked if tag in pools)
        named = set() if task.loose_restrictions else task.worker_restrictions or set()
        tag = (task.annotations or {}).get(TAG_ANNOTATION)  # of a pool that does not exist
        gone = named - scheduler.workers.keys()
        unable = named and not gone and not any(ws.address in named for ws in able)
        others = [
            r for r in asked if r not in pools and r != tag and not scheduler.resources.get(r)
        ]
        return UnmetNeed(
            slots=max(1, slots_of(asked, self._tag(task))),
            not_offered=tuple(sorted(map(str, others))),
            apart=tags if len(tags) > 1 and not able else (),
            restricted_to=tuple(sorted(named)),
            gone=tuple(sorted(gone)),
            unable=dict(asked) if unable else {},
        )

    def _needs(self, task: TaskState) -> dict[str, Any]:
        needed = task.waiting_on or ()
        found = [_need(other) for other in islice(needed, LOOKED_NEEDED)]
        found.sort(key=lambda need: (_ORDER.index(need.state), need.key))
        return {"needs": tuple(found[:SHOWN_NEEDED]), "needed": len(needed)}

    def _ended(self, task: TaskState, told: TaskFacts) -> TaskFacts:
        row = self._log.profile(task.key)
        if row is not None:
            since_s = max(0.0, time.time() - row["timestamp"])
            told = replace(told, since_s=since_s, worker=str(row["worker"] or ""))
        if task.state == "erred":
            return replace(told, state="failed", failure=self._failure(task))
        return replace(told, state="done" if task.state == "memory" else "cancelled")

    def _failure(self, task: TaskState) -> Failure:
        failed = FailedTask(task)
        error, message = failure_in({"exception_text": failed.error})
        workers = self._scheduler.workers
        names = [str(workers[w].name) if w in workers else w for w in failed.workers]
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]}..."
        return Failure(
            error=error,
            message=message,
            frame=own_frame_in(failed.traceback or "") or "",
            worker=names[0] if names else "",
            lost=failed.lost,
            blamed="" if failed.blamed is None else str(failed.blamed),
        )

    def _parent(self, key: Any) -> str:
        task = None if key is None else self._scheduler.tasks.get(key)
        return str(key) if task is not None and task.state == "processing" else ""

    def _children_of(self, key: Any) -> list[TaskState]:
        """Return the unfinished tasks that a task has submitted."""
        call, tasks = self._log.find(key), self._scheduler.tasks
        found = [tasks[k] for k in (call and call.children) or () if k in tasks]
        return [t for t in found if t.state not in ("memory", "erred", "forgotten", "released")]


async def _answered(worker: WorkerState, asked: Awaitable[_T]) -> _T | None:
    """Return a worker's answer about its tasks, or None if it does not answer in time."""
    try:
        return await asyncio.wait_for(asked, ASK_TIMEOUT_S)
    except (OSError, TimeoutError, AttributeError) as error:
        logger.debug("worker %s sends no report on its tasks: %r", worker.name, error)
        return None


# Forgotten tasks ----------------------------------------------------------------------------------


def failed_tasks_named(
    name: str, rows: Iterable[Mapping[str, Any]], now: float
) -> TaskFacts | None:
    """Return the facts about the failed tasks that match a name, or None.
    ``name`` is tried as a key, a task name and a key prefix, in this order. ``rows`` are rows of
    ``failures.jsonl``, the newest first.
    """
    rows = list(rows)
    meanings: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
        lambda details: details["task_id"] == name,
        lambda details: details.get("task_name") == name,
        lambda details: means_key(name, str(details["task_id"])),
    )
    matches = ([row for row in rows if means(row["details"])] for means in meanings)
    found = next(filter(None, matches), None)
    if found is None:
        return None
    last, details = found[0], found[0]["details"]
    worker = str(details.get("worker") or "")
    frame = details.get("frame") or own_frame_in(str(details.get("traceback") or "")) or ""
    failure = Failure(str(last["failure_class"]), str(last["message"]), str(frame), worker)
    return TaskFacts(
        key=str(details["task_id"]),
        name=str(details.get("task_name") or details["task_id"]),
        tag=str(details.get("tag") or UNTAGGED),
        state="failed",
        count=sum(int(row.get("count", 1)) for row in found),
        since_s=max(0.0, now - last["timestamp"]),
        worker=worker,
        failure=failure,
        gone=True,
    )


# Views of single tasks ----------------------------------------------------------------------------

#: Maximum number of characters of a key that is looked up, and of a string in a view.
LONGEST_KEY, LONGEST_TEXT = 10_000, 20_000
_NOT_FAILED = frozenset({"running", "queued", "blocked", "done"})
_NO_ARGUMENTS = "arguments are not shown: SCALABLE_RECORD_ARGUMENTS is off"


@dataclass(frozen=True, repr=False)
class result:  # noqa: N801 - shown as a word, as in ``(result(of='load-1'), 2)``
    """Result of another task, in the arguments of a task that has not started."""

    of: str


class _ResultMapping:
    """Mapping that returns a placeholder (:class:`result`) for each key."""

    def get(self, key: Any, _: Any = None) -> result:
        return result(str(key)[:200])


class TaskViews:
    """Answers questions about one cluster's tasks. Nothing is unpickled, no user code runs."""

    def __init__(self, cluster: ClusterState, overviews: Overviews) -> None:
        self._scheduler, self._log = cluster.scheduler, TaskLog.of(cluster.scheduler)
        self._cluster, self._overviews = cluster, overviews
        offer(self._scheduler, {Handler.EXPLAIN: self.explain, Handler.CALL: self.call})

    async def explain(self, *, cluster: str = "", **asked: Any) -> dict[str, Any]:
        """Return :meth:`Explainer.explain` as plain values, with hints for a named cluster."""
        explainer = Explainer(self._cluster, self._overviews, cluster)
        return (await explainer.explain(**asked)).to_dict()

    async def call(self, key: str, position: int | None = None) -> dict[str, Any]:
        """Return the view of a task, as :meth:`TaskView.to_dict` does.
        ``key`` may be a bundle's. ``position`` is then a task's, or None for the running task.
        """
        task = self._task(key)
        notes: list[str] = []
        found = {"key": key[:LONGEST_KEY], "position": position, **self._measured(task, key)}
        if task is not None:
            (told,) = (await self.explain(key=task.key))["tasks"]
            found |= {name: told[name] for name in ("state", "sentence", "advice")}
            found |= self._known(task, notes)
        elif found.get("state") is None:
            notes.append("the scheduler has no record of this task")
        else:
            notes.append("the scheduler keeps only the times of this task")
        single_lives = position is None and found.get("state") in _NOT_FAILED
        if not single_lives and (failure := self._failure(key, position)) is not None:
            found |= failure
        known = self._log.workers.get(found.get("worker") or "")
        worker = None if known is None else known.state
        if task is not None and task.processing_on is not None:
            worker = task.processing_on
        if worker is not None:
            asked = self._shown(worker, key if task is None else task.key)
            if (told := await _answered(worker, asked)) is None:
                notes.append("the worker does not answer: arguments and output may be missing")
                told = {}
            if found.get("output") is None:
                found["output"] = told.get("output")
            if position is None or told.get("position") == position:
                names = [n for n in ("arguments", "position") if told.get(n) is not None]
                found |= {name: told[name] for name in names}
        if position is not None or found.get("bundle"):
            notes.append("the task was sent in a bundle: the times are those of the whole bundle")
        if found.get("arguments") is None and task is not None and found.get("bundle"):
            notes.append("arguments of a bundle are known only while one of its tasks runs")
        short = {name: _bounded(name, value) for name, value in found.items()}
        return TaskView(**short, notes=tuple(notes)).to_dict()

    async def _shown(self, worker: WorkerState, key: Any) -> dict[str, Any]:
        server = self._scheduler.rpc(worker.address)
        told = await request(server, WorkerHandler.SHOWN_CALL, key=key)
        return told or {}  # None from Dask's own workers

    def _task(self, key: str) -> TaskState | None:
        task = self._scheduler.tasks.get(key)
        if task is None and key.startswith("(") and len(key) <= LONGEST_KEY:  # repr of a tuple
            try:
                task = self._scheduler.tasks.get(ast.literal_eval(key))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return None
        return task

    def _measured(self, task: TaskState | None, key: str) -> dict[str, Any]:
        row = self._log.profile(key if task is None else task.key)
        if row is None:
            return {}
        duration = row["duration_s"]
        began = None if duration is None else row["timestamp"] - duration
        told = {name: row[name] for name in ("queued_s", "transfer_s", "cpu_s", "peak_memory")}
        state = "done" if row["state"] == "succeeded" else "failed"
        told |= {"name": row["task_name"], "tag": row["tag"], "worker": row["worker"]}
        return told | {
            "state": state, "began": began, "ended": row["timestamp"], "duration_s": duration,
        }  # fmt: skip

    def _known(self, task: TaskState, notes: list[str]) -> dict[str, Any]:
        call = self._log.call(task.key)
        told: dict[str, Any] = {"name": call.name, "tag": call.tag}
        told["bundle"] = 0 if call.bundle is None else call.calls
        began = task.processing_on is not None or task.state in ("memory", "erred")
        told["tries"] = call.tries + began
        if call.repeated is not None:
            reason, lost = call.repeated
            told["again"] = f"{reason}: {lost}" if lost else str(reason)
        if task.processing_on is not None:
            told["worker"] = str(task.processing_on.name)
            since_s = dict(running_tasks(task.processing_on)).get(task)
            if since_s is not None:
                told |= {"began": time.time() - since_s, "duration_s": since_s}
        if task.state == "memory" and task.nbytes >= 0:
            told["result_bytes"] = int(task.nbytes)
        if call.bundle is None:
            if not settings.records_arguments():
                notes.append(_NO_ARGUMENTS)
            elif (given := arguments_of(task.run_spec, _ResultMapping())) is not None:
                told["arguments"] = shown_arguments(*given)
        return told

    def _failure(self, key: str, position: int | None) -> dict[str, Any] | None:
        for row in self._overviews.recent.failures():
            details: Mapping[str, Any] = row.get("details") or {}
            if details.get("task_id") != key or details.get("position") != position:
                continue
            names = ("arguments", "frame", "stderr", "traceback", "output", "worker", "tries")
            told = {name: details[name] for name in names if details.get(name) is not None}
            told |= {"failure_class": row["failure_class"], "message": row["message"]}
            told |= {"name": details.get("task_name"), "tag": details.get("tag")}
            return told | {"position": details.get("position"), "state": "failed"}
        return None


def _bounded(name: str, value: Any) -> Any:
    """Return a fact, shortened if it is a string. Tracebacks and output keep their tail."""
    if not isinstance(value, str):
        return value
    tail = name in ("traceback", "output", "stderr")
    return value[-LONGEST_TEXT:] if tail else value[:LONGEST_TEXT]


# Waiting tasks ------------------------------------------------------------------------------------

#: Seconds for which tasks have to wait before the reason is logged.
WAIT_BEFORE_WORD_S = 2.0
#: Seconds between two messages about the same pool or resource.
REPEAT_WORD_S = 60.0
#: Stands for all clients of the cluster, if the waiting ones are unknown.
EVERYBODY = ""
#: Seconds since the last heartbeat, plus two heartbeat intervals, after which a worker is reported
#: as silent. One message names at most ``NAMED_SILENT`` workers.
SILENT_S = 30.0
NAMED_SILENT = 5


@dataclass
class _Told:
    """Reason reported to clients, its monotonic time, and the clients' ids."""

    why: str
    at: float
    clients: set[str] = field(default_factory=set)


class WaitingTasks:
    """Logs why tasks wait, and fails tasks that can never run."""

    def __init__(self, cluster: ClusterState, overviews: Overviews) -> None:
        self.scheduler, self._cluster, self._overviews = cluster.scheduler, cluster, overviews
        self._silent: set[str] = set()
        self._said_at: dict[str, float] = {}
        self._told: dict[str, _Told] = {}

    def event(self, event: Event) -> None:
        """Notify all clients that a worker failed to connect. Its manager logged the failure."""
        if event.get("failure_class") == FAILED_START:
            logger.info("%s", event["message"])
            told = {"clients": [], "words": event["message"]}
            self.scheduler.log_event(WAITING_TOPIC, told)

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Log why tasks are queued, and fail the tasks that no worker can ever run."""
        now, groups = time.monotonic(), dict[tuple[Any, ...], list[TaskState]]()
        # The newest first: if there are very many, those that wait for long were examined before.
        for task in islice(reversed(list(self.scheduler.unrunnable)), LOOKED_TASKS):
            groups.setdefault(_alike(task), []).append(task)
        self._name_silent_workers()
        told = self._said_at.items()
        self._said_at = {about: at for about, at in told if now - at < REPEAT_WORD_S}
        if not groups:
            self._told.clear()
            return
        explainer = Explainer(self._cluster, self._overviews, statuses=pools)
        said_of = dict[str, tuple[said.Cause, list[TaskState]]]()
        for tasks in groups.values():
            since = self.scheduler.unrunnable.get(tasks[-1])
            if since is None or now - since < WAIT_BEFORE_WORD_S:
                continue
            facts = explainer.task(tasks[0])
            if facts.state != "no-worker":
                continue
            is_tagged = (tasks[0].annotations or {}).get(TAG_ANNOTATION) is not None
            if (error := said.error_of(facts)) is not None:
                # Without a tag, somebody may start workers with these resources by hand.
                failing = tasks if is_tagged or pools.get(facts.tag) else []
                for task in failing:
                    logger.error("task %s fails: %s", task.key, error)
                    fail_ready_task(self.scheduler, task, error)
                continue
            about = next(iter((*facts.ask.gone, *facts.ask.not_offered)), facts.tag)
            said_of.setdefault(about, (said.without_worker(facts), []))[1].extend(tasks)
        for about, (cause, tasks) in said_of.items():
            words = f"{counted(len(tasks), 'task is', 'tasks are')} queued for {cause}"
            # Without the durations in the words, which would make each message a new one.
            place = pools[about].waiting if about in pools else None
            self._say(about, words, tasks, now, why=f"{cause.reason} {place or ''}")

    def _name_silent_workers(self) -> None:
        workers = self.scheduler.workers.values()
        most_s = SILENT_S + 2 * heartbeat_interval(len(workers))
        before = time.time() - most_s
        silent = {str(ws.name) for ws in workers if ws.last_seen < before}
        if new := sorted(silent - self._silent):
            names = ", ".join(new[:NAMED_SILENT])
            more = f" and {len(new) - NAMED_SILENT} others" if len(new) > NAMED_SILENT else ""
            logger.warning(
                "no heartbeat for %.0f s of %s%s: stopped, or a task holds the GIL",
                most_s,
                names,
                more,
            )
        self._silent = silent

    def _say(
        self, about: str, words: str, tasks: list[TaskState], now: float, *, why: str = ""
    ) -> None:
        """Log ``words`` about waiting tasks, and notify each client once per reason (``why``)."""
        if now - self._said_at.get(about, -REPEAT_WORD_S) >= REPEAT_WORD_S:
            self._said_at[about] = now
            logger.warning("%s", words)
        told = self._told.get(about)
        if told is None or (told.why != (why or words) and now - told.at >= REPEAT_WORD_S):
            told = self._told[about] = _Told(why or words, now)
        clients = _clients_of(tasks)
        if new := clients - told.clients:
            told.clients |= new
            everybody = EVERYBODY in new
            event = {"clients": [] if everybody else sorted(new), "words": words}
            self.scheduler.log_event(WAITING_TOPIC, event)


def _clients_of(tasks: Iterable[TaskState]) -> set[str]:
    """Return the ids of the clients waiting for tasks, or ``EVERYBODY`` if some are unknown."""
    clients: set[str] = set()
    for task in tasks:
        wanting = {client.client_key for client in task.who_wants or ()}
        # A client of this name belongs to a worker: the user waits for the task that waits.
        unknown = not wanting or any("-worker-" in client for client in wanting)
        clients |= {EVERYBODY} if unknown else wanting
    return clients
