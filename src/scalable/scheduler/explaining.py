"""Explanations of why a cluster's tasks and pools wait, or why tasks failed."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import (
    ask_task_states,
    fail_tasks,
    heartbeat_pause_s,
    tasks_no_worker_takes,
)
from scalable.dask_compat.tasks import (
    FailedTask,
    counts_of_waiting,
    queued_tasks,
    since_no_worker,
)
from scalable.errors import ClusterError, NoWorkersError
from scalable.frames import own_frame_in
from scalable.model import PoolStatus
from scalable.protocol.events import FAILED_START, Event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION
from scalable.protocol.operations import TAG_ANNOTATION, WAITING_TOPIC
from scalable.protocol.pools import UNTAGGED, fits, shown, slots_of
from scalable.scheduler.overviews import KEPT, RecentEvents
from scalable.scheduler.pool_facts import ClusterState, PoolReader, name_of
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.task_log import EndedTask, TaskLog, running_tasks
from scalable.views import impossible
from scalable.views.explanation import Explanation, Explanations, Reason
from scalable.views.facts import CallFacts, Failure, NeededCall, NextTry, PoolFacts, UnmetNeed
from scalable.views.pool_reasons import explain_pool, without_workers
from scalable.views.task_reasons import explain_call

logger = logging.getLogger("scalable.scheduler")

#: Maximum numbers of a task's dependencies that are named, and that are examined.
SHOWN_NEEDED, LOOKED_NEEDED = 10, 1000
#: Maximum number of tasks examined to find those ahead of a task.
LOOKED_BEFORE = 20_000
#: Maximum number of characters of an error's message.
LONGEST_MESSAGE = 500


def asked_tag(task: TaskState, pools: Mapping[str, Any]) -> str:
    """Return the tag of a task's pool, or the first resource that it requires."""
    asked = [str((task.annotations or {}).get(TAG_ANNOTATION) or "")]
    asked += [str(resource) for resource in task.resource_restrictions or ()]
    return next((t for t in asked if t and t in pools), next(filter(None, asked), UNTAGGED))


def ask_of(task: TaskState, scheduler: Scheduler, pools: Mapping[str, Any]) -> UnmetNeed:
    """Return the requirements of a task that no worker meets."""
    asked = task.resource_restrictions or {}
    able = [ws for ws in scheduler.workers.values() if _offers(ws, asked)]
    tags = tuple(tag for tag in asked if tag in pools)
    named = set() if task.loose_restrictions else task.worker_restrictions or set()
    tag = (task.annotations or {}).get(TAG_ANNOTATION)  # of a pool that does not exist
    gone = named - scheduler.workers.keys()
    unable = named and not gone and not any(ws.address in named for ws in able)
    return UnmetNeed(
        slots=max(1, slots_of(asked, asked_tag(task, pools))),
        not_offered=tuple(
            sorted(
                str(r)
                for r in asked
                if r not in pools and r != tag and not scheduler.resources.get(r)
            )
        ),
        apart=tags if len(tags) > 1 and not able else (),
        restricted_to=tuple(sorted(named)),
        gone=tuple(sorted(gone)),
        unable=dict(asked) if unable else {},
    )


def _offers(worker: WorkerState, resources: Mapping[str, float]) -> bool:
    return all(worker.resources.get(name, 0) >= amount for name, amount in resources.items())


class CallReader:
    """Reads the facts about the tasks of one cluster."""

    def __init__(self, scheduler: Scheduler, pools: PoolReader) -> None:
        self._scheduler, self._pools = scheduler, pools
        self._log = TaskLog.of(scheduler)

    def facts(
        self, task: TaskState, statuses: Mapping[str, PoolStatus], *, pool: bool = True
    ) -> CallFacts:
        tag = asked_tag(task, statuses)
        bundle = (task.annotations or {}).get(BUNDLE_ANNOTATION)
        calls = 0 if bundle is None else int(bundle["calls"])
        told: dict[str, Any] = {"key": str(task.key), "name": name_of(task)}
        told |= {"tag": tag, "bundle": calls}
        waits = task.state in ("no-worker", "queued", "processing")
        if waits and pool:
            told["pool"] = self._pools.facts(tag, statuses)
        parent = self._parent(task.key)
        match task.state:
            case "waiting" | "released":
                needs = self._needs(task)
                return CallFacts(**told, state="needs" if needs else "no-worker", **needs)
            case "no-worker" if (coming := self.next_try(task.key)) is not None:
                return CallFacts(**told, state="backoff", next_try=coming)
            case "no-worker":
                ask = ask_of(task, self._scheduler, statuses)
                since = since_no_worker(self._scheduler, task)
                since_s = None if since is None else time.monotonic() - since
                return CallFacts(**told, state="no-worker", ask=ask, since_s=since_s)
            case "queued":
                told |= self._before(task, queued_tasks(self._scheduler))
                return CallFacts(**told, state="queued", since_s=self._ready_s(task), parent=parent)
            case "processing":
                return self._processing(task, told, parent)
        return self._ended(task, told)

    def _processing(self, task: TaskState, told: dict[str, Any], parent: str) -> CallFacts:
        worker = task.processing_on
        assert worker is not None
        told["worker"] = str(worker.name)
        running = dict(running_tasks(worker))
        if task in running:
            since_s = running[task]
            left_s = self._pools.left_s(task, since_s)
            children = [child.key for child in self.children_of(task.key)]
            told |= {"children": len(children), "child": str(children[0]) if children else ""}
            return CallFacts(**told, state="running", since_s=since_s, left_s=left_s)
        told |= self._before(task, (t for t in worker.processing if t not in running))
        return CallFacts(**told, state="assigned", since_s=self._ready_s(task), parent=parent)

    def _before(self, task: TaskState, others: Iterable[TaskState]) -> dict[str, Any]:
        mine = task.priority
        if mine is None:
            return {}
        others = islice(others, LOOKED_BEFORE)
        before = [t for t in others if t.priority is not None and t.priority < mine]
        first = sorted(before, key=lambda t: t.priority or ())[:3] if len(before) < 1000 else []
        return {"before": len(before), "first": tuple(str(t.key) for t in first)}

    def _needs(self, task: TaskState) -> dict[str, Any]:
        needed = task.waiting_on or ()
        if not needed:
            return {}
        order = ("failed", "waiting", "ready", "lost", "assigned", "running")
        found = [self._need(other) for other in islice(needed, LOOKED_NEEDED)]
        found.sort(key=lambda need: (order.index(need.state), need.key))
        return {"needs": tuple(found[:SHOWN_NEEDED]), "needed": len(needed)}

    @staticmethod
    def _need(task: TaskState) -> NeededCall:
        worker = task.processing_on
        state = {"no-worker": "ready", "queued": "ready", "erred": "failed", "memory": "lost"}.get(
            task.state, "waiting"
        )
        if worker is not None:
            runs = any(task is other for other, _ in running_tasks(worker))
            state = "running" if runs else "assigned"
        return NeededCall(
            str(task.key), name_of(task), state, "" if worker is None else str(worker.name)
        )

    def _ended(self, task: TaskState, told: dict[str, Any]) -> CallFacts:
        row = self._log.profile(task.key)
        since_s = None if row is None else max(0.0, time.time() - row["timestamp"])
        if row is not None:
            told["worker"] = str(row["worker"] or "")
        if task.state == "memory":
            return CallFacts(**told, state="done", since_s=since_s)
        if task.state != "erred":
            return CallFacts(**told, state="cancelled")
        return CallFacts(**told, state="failed", since_s=since_s, failure=self._failure(task))

    def _failure(self, task: TaskState) -> Failure:
        failed = FailedTask(task)
        call = self._log.call(failed.blamed or task.key)
        told = {"exception_text": failed.error, "traceback_text": failed.traceback}
        error, message = EndedTask(call, False, told).failure()
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

    # From the records of the tasks ---------------------------------------------------------------

    def next_try(self, key: Any) -> NextTry | None:
        retrying = getattr(self._scheduler, "retrying", None)
        return retrying.next_try(key) if isinstance(retrying, Retrying) else None

    def _ready_s(self, task: TaskState) -> float | None:
        ready_at = self._log.call(task.key).ready_at
        return None if ready_at is None else max(0.0, time.time() - ready_at)

    def _parent(self, key: Any) -> str:
        parent = self._log.call(key).parent
        task = None if parent is None else self._scheduler.tasks.get(parent)
        return str(parent) if task is not None and task.state == "processing" else ""

    def children_of(self, key: Any) -> list[TaskState]:
        """Return the unfinished tasks that a task has submitted."""
        call = self._log.find(key)
        keys = () if call is None else call.children or ()
        tasks = [self._scheduler.tasks[k] for k in keys if k in self._scheduler.tasks]
        return [t for t in tasks if t.state not in ("memory", "erred", "forgotten", "released")]


# Explanations -------------------------------------------------------------------------------------

#: Seconds that a worker has to report its tasks' states. Otherwise its last heartbeat counts.
ASK_TIMEOUT_S = 2.0
#: Maximum number of workers that are contacted for one explanation.
ASKED_WORKERS = 4
#: Maximum number of waiting tasks that are examined, and of groups in an answer.
LOOKED_CALLS, SHOWN_GROUPS = 20_000, 50
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


class Pace:
    """Divides a long computation into turns of ``turn_s`` seconds in the event loop."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._turn_s = turn_s
        self._began = time.monotonic()

    async def cooperative_yield(self) -> None:
        """Yield to other coroutines if this one has run for long enough."""
        if time.monotonic() - self._began >= self._turn_s:
            await asyncio.sleep(0)
            self._began = time.monotonic()


class Explainer:
    """Explains the pools and tasks of one cluster."""

    def __init__(self, cluster: ClusterState, recent: RecentEvents) -> None:
        self._cluster, self._scheduler = cluster, cluster.scheduler
        self.pools = PoolReader(cluster)
        self._calls = CallReader(cluster.scheduler, self.pools)
        self._forgotten = ForgottenCalls(cluster.scheduler, recent)
        offer(cluster.scheduler, {Handler.EXPLAIN: self.explain})

    async def explain(
        self,
        tag: str | None = None,
        key: Any = None,
        name: str | None = None,
        in_client: Mapping[str, Any] | None = None,
        cluster: str = "",
    ) -> dict[str, Any]:
        """Return :meth:`Explanations.to_dict`, by default for all pools and queued tasks.
        ``name`` is a tag, a key, a unique prefix of a key, or a task name. ``in_client`` has
        ``key``, ``tag`` and ``before`` of a task that is queued in its client.
        """
        statuses = self._cluster.pools()
        cluster = cluster or getattr(self._scheduler, "cluster_name", "")
        if in_client is not None:
            of, before = str(in_client["tag"]), int(in_client["before"])
            called, pool = str(in_client["key"]), self.pools.facts(of, statuses)
            facts = CallFacts(called, called, of, "backlog", before=before, pool=pool)
            return Explanations(calls=(explain_call(facts.of_cluster(cluster)),)).to_dict()
        if name is not None:
            tag, key = self._meant(name, statuses)
        if key is not None:
            facts = (await self._call(key, statuses)).of_cluster(cluster)
            return Explanations(calls=(explain_call(facts),)).to_dict()
        tags = [tag] if tag is not None else [t for t in statuses if t] or [UNTAGGED]
        pace, pools = Pace(), list[Explanation]()
        for each in tags:
            pools.append(
                explain_pool(replace(self.pools.facts(each, statuses), cluster_name=cluster))
            )
            await pace.cooperative_yield()
        groups = await self._groups(statuses, tag, pace)
        calls = tuple(explain_call(facts.of_cluster(cluster)) for facts in groups)
        return Explanations(tuple(pools), calls).to_dict()

    def _meant(self, name: str, statuses: Mapping[str, PoolStatus]) -> tuple[str | None, Any]:
        """Resolve a name to a tag or a key. The other element is None."""
        if name in statuses:
            return name, None
        if name in self._scheduler.tasks:
            return None, name
        found = [k for k in self._scheduler.tasks if str(k).startswith(name)]
        exact = [k for k in found if str(k) == name]
        if exact or len(found) == 1:
            return None, (exact or found)[0]
        tasks = [self._scheduler.tasks[k] for k in found]
        unended = [task for task in tasks if task.state not in ("memory", "erred")]
        failed = [task for task in tasks if task.state == "erred"]
        return None, next((task.key for task in unended or failed or tasks), name)

    # One task -----------------------------------------------------------------------------------

    async def _call(self, key: Any, statuses: Mapping[str, PoolStatus]) -> CallFacts:
        task = self._scheduler.tasks.get(key)
        if task is None:
            return self._forgotten.facts(str(key), statuses)
        facts = self._calls.facts(task, statuses)
        if task.state == "processing":
            return await self._asked(task, facts, statuses)
        return facts

    async def _asked(
        self, task: TaskState, facts: CallFacts, statuses: Mapping[str, PoolStatus]
    ) -> CallFacts:
        on = await self._states([task])
        if task.state != "processing":  # it has finished since
            return self._calls.facts(task, statuses)
        state, lends = on.get(task.key, ("", False))
        exact = _ON_WORKER.get(state, facts.state)
        if exact == "running" != facts.state:
            children = self._calls.children_of(task.key)
            child = str(children[0].key) if children else ""
            return replace(
                facts, state=exact, since_s=None, children=len(children), child=child, lends=lends
            )
        facts = replace(facts, state=exact, lends=lends)
        if exact == "assigned" and facts.pool is not None:
            return replace(facts, pool=await self._with_holders(facts.pool))
        return facts

    async def _with_holders(self, pool: PoolFacts) -> PoolFacts:
        """Mark the running tasks that hold their slots while waiting for other tasks."""
        parents = [
            task
            for call in pool.running
            if (task := self._task(call.key)) is not None and self._calls.children_of(task.key)
        ]
        on = await self._states(parents)
        holding = {str(key) for key, (_, lends) in on.items() if not lends}
        running = tuple(replace(call, holds=call.key in holding) for call in pool.running)
        return replace(pool, running=running)

    def _task(self, key: str) -> TaskState | None:
        return self._scheduler.tasks.get(key)

    async def _states(self, tasks: Iterable[TaskState]) -> dict[Any, tuple[str, bool]]:
        """Map keys to each task's state on its worker, and to whether it has seceded."""
        workers: dict[Any, list[Any]] = {}
        for task in tasks:
            if task.processing_on is not None:
                workers.setdefault(task.processing_on, []).append(task.key)
        answers = await asyncio.gather(
            *(self._ask(ws, keys) for ws, keys in islice(workers.items(), ASKED_WORKERS))
        )
        return {key: each for answer in answers for key, each in answer.items()}

    async def _ask(self, worker: Any, keys: list[Any]) -> dict[Any, tuple[str, bool]]:
        try:
            asked = ask_task_states(self._scheduler, worker, keys)
            answer = await asyncio.wait_for(asked, ASK_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            logger.debug("worker %s sends no report on its tasks: %r", worker.name, error)
            return {}
        return {} if answer is None else answer[1]

    # Many tasks ---------------------------------------------------------------------------------

    async def _groups(
        self, statuses: Mapping[str, PoolStatus], tag: str | None, pace: Pace
    ) -> list[CallFacts]:
        """Return the facts about the waiting tasks of one pool or of all, grouped by reason."""
        groups: dict[tuple[Any, ...], tuple[TaskState, int]] = {}
        async for task in self._waiting(pace):
            # There may be many tasks, so the key uses only what each task has at hand.
            given = task.annotations or {}
            same = (
                task.state,
                self._calls.next_try(task.key) is not None,
                task.prefix,
                given.get(TASK_ANNOTATION),
                given.get(TAG_ANNOTATION),
                tuple(task.resource_restrictions or ()),
                frozenset(task.worker_restrictions or ()),
            )
            # The last stands for all, because the first ones may start while this yields turns.
            groups[same] = task, groups.get(same, (task, 0))[1] + 1
        found, pools = list[CallFacts](), dict[str, PoolFacts]()
        still = {same: each for same, each in groups.items() if each[0].state == same[0]}
        shown = self._of_pool(still.values(), statuses, tag)
        for one, count in islice(shown, SHOWN_GROUPS):
            await pace.cooperative_yield()
            facts = replace(self._calls.facts(one, statuses, pool=False), count=count)
            if facts.tag not in pools:  # slow: it reads all workers of the pool
                pools[facts.tag] = self.pools.facts(facts.tag, statuses)
            facts = replace(facts, pool=pools[facts.tag])
            if count > 1:  # the tasks ahead of this one are not those ahead of the others
                facts = replace(facts, before=0, first=())
            found.append(facts)
        await pace.cooperative_yield()
        return [*found, *self._needing(statuses, tag)]

    def _of_pool(
        self,
        groups: Iterable[tuple[TaskState, int]],
        statuses: Mapping[str, PoolStatus],
        tag: str | None,
    ) -> Iterable[tuple[TaskState, int]]:
        """Return the task groups of one pool (None: all), merging groups with the same names."""
        joined: dict[tuple[Any, ...], tuple[TaskState, int]] = {}
        for task, count in groups:
            of = asked_tag(task, statuses)
            if tag is None or of == tag:
                alike = tuple(sorted(task.resource_restrictions or ())), task.worker_restrictions
                waits_to_try = self._calls.next_try(task.key) is not None
                same = (task.state, waits_to_try, of, name_of(task), *map(str, alike))
                first, before = joined.get(same, (task, 0))
                joined[same] = first, before + count
        return joined.values()

    async def _waiting(self, pace: Pace) -> AsyncIterator[TaskState]:
        """Yield at most ``LOOKED_CALLS`` waiting tasks, starting with those without a worker."""
        nowhere, queued = tasks_no_worker_takes(self._scheduler), queued_tasks(self._scheduler)
        ready = list(islice(chain(nowhere, queued), LOOKED_CALLS))
        left = LOOKED_CALLS - len(ready)
        for task in ready:
            await pace.cooperative_yield()
            if task.state in ("no-worker", "queued"):
                yield task
        for worker in list(self._scheduler.workers.values()):
            if left <= 0 or not worker.processing:
                continue
            running = {task for task, _ in running_tasks(worker)}
            assigned = list(islice(worker.processing, left))
            left -= len(assigned)
            for task in assigned:
                await pace.cooperative_yield()
                if task.processing_on is worker and task not in running:
                    yield task

    def _needing(self, statuses: Mapping[str, PoolStatus], tag: str | None) -> list[CallFacts]:
        counts = counts_of_waiting(self._scheduler)
        found: dict[str, TaskState] = {}
        for task in islice(self._scheduler.tasks.values(), LOOKED_CALLS) if counts else ():
            if task.state == "waiting" and task.prefix.name in counts:
                found.setdefault(task.prefix.name, task)
                if len(found) == min(len(counts), SHOWN_GROUPS):
                    break
        every = (
            replace(self._calls.facts(task, statuses), count=counts[prefix])
            for prefix, task in found.items()
        )
        return [facts for facts in every if tag is None or facts.tag == tag]


# Forgotten tasks ----------------------------------------------------------------------------------

#: Maximum number of known names that an unknown name is compared with.
COMPARED_NAMES = 1000


class ForgottenCalls:
    """Reports failed tasks whose futures clients no longer hold."""

    def __init__(self, scheduler: Scheduler, recent: RecentEvents) -> None:
        self._scheduler, self._recent = scheduler, recent

    def facts(self, name: str, tags: Iterable[str]) -> CallFacts:
        """Return the facts about forgotten tasks with a given key, key prefix or task name."""
        rows = [row for row in self._recent.latest("failures", KEPT["failures"]) if _of_call(row)]
        found = failed_calls_named(name, rows, time.time())
        if found is not None:
            return found
        known = [tag for tag in tags if tag]
        known += islice(map(str, self._scheduler.task_prefixes), COMPARED_NAMES)
        known += getattr(self._scheduler, "tags_of_tasks", None) or ()
        known += [str(row["details"]["task_name"]) for row in rows]
        close = difflib.get_close_matches(name, dict.fromkeys(known), 2)
        return CallFacts(name, name, UNTAGGED, "unknown", close=tuple(close))


def _of_call(row: Mapping[str, Any]) -> bool:
    return bool((row.get("details") or {}).get("task_id"))


def failed_calls_named(
    name: str, rows: Iterable[Mapping[str, Any]], now: float
) -> CallFacts | None:
    """Return the facts about the failed tasks that match a name, or None.
    ``name`` is tried as a key, a task name and a key prefix, in this order. ``rows`` are rows of
    ``failures.jsonl``, the newest first.
    """
    rows = list(rows)
    meanings: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
        lambda details: details["task_id"] == name,
        lambda details: details.get("task_name") == name,
        lambda details: str(details["task_id"]).startswith(name),
    )
    for means in meanings:
        if found := [row for row in rows if means(row["details"])]:
            return _facts(found, now)
    return None


def _facts(rows: list[Mapping[str, Any]], now: float) -> CallFacts:
    last = rows[0]
    details = last["details"]
    worker = str(details.get("worker") or "")
    frame = details.get("frame") or own_frame_in(str(details.get("traceback") or "")) or ""
    failure = Failure(str(last["failure_class"]), str(last["message"]), str(frame), worker)
    return CallFacts(
        key=str(details["task_id"]),
        name=str(details.get("task_name") or details["task_id"]),
        tag=str(details.get("tag") or UNTAGGED),
        state="failed",
        count=sum(int(row.get("count", 1)) for row in rows),
        since_s=max(0.0, now - last["timestamp"]),
        worker=worker,
        failure=failure,
        gone=True,
    )


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


class WaitingCalls:
    """Logs why tasks wait, and fails tasks that can never run."""

    def __init__(self, scheduler: Scheduler, pools: PoolReader) -> None:
        self.scheduler, self._pools = scheduler, pools
        self._silent: set[str] = set()
        self._waiting_since: dict[str, float] = {}
        self._said_at: dict[str, float] = {}
        self._told: dict[str, _Told] = {}

    def event(self, event: Event) -> None:
        """Notify all clients that a worker failed to connect. Its manager logged the failure."""
        if event.get("failure_class") == FAILED_START:
            logger.info("%s", event["message"])
            told = {"clients": [], "words": event["message"]}
            self.scheduler.log_event(WAITING_TOPIC, told)

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Log why tasks are queued, and fail the tasks that no pool can ever run."""
        waiting: dict[str, list[TaskState]] = {}
        for task in tasks_no_worker_takes(self.scheduler):
            waiting.setdefault(asked_tag(task, pools), []).append(task)
        now = time.monotonic()
        self._name_silent_workers()
        for tag in waiting.keys() - self._waiting_since.keys():
            logger.debug("%d tasks start to wait for %s", len(waiting[tag]), shown(tag))
        self._waiting_since = {t: self._waiting_since.get(t, now) for t in waiting}
        said = self._said_at.items()
        self._said_at = {about: at for about, at in said if now - at < REPEAT_WORD_S}
        if not waiting:
            self._told.clear()
        for tag, tasks in waiting.items():
            if now - self._waiting_since[tag] >= WAIT_BEFORE_WORD_S:
                self._explain(tag, self._without_impossible(tasks, pools, now), pools, now)

    def _without_impossible(
        self, tasks: Iterable[TaskState], pools: Mapping[str, Any], now: float
    ) -> list[TaskState]:
        """Fail the tasks whose restrictions no worker can meet, and return the others."""
        others = []
        for task in tasks:
            ask = ask_of(task, self.scheduler, pools)
            if ask.apart:
                self._fail([task], ClusterError(impossible.apart(ask.apart)))
            elif ask.unable:
                words = impossible.unable(ask.restricted_to, ask.unable)
                self._fail([task], ClusterError(words))
            else:
                others.append(task)
                for address in ask.gone:
                    words = f"tasks wait for {impossible.worker_gone(address)}"
                    self._say(address, words, [task], now)
        return others

    def _name_silent_workers(self) -> None:
        workers = self.scheduler.workers.values()
        most_s = SILENT_S + 2 * heartbeat_pause_s(len(workers))
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

    def _explain(
        self, tag: str, tasks: list[TaskState], pools: Mapping[str, PoolStatus], now: float
    ) -> None:
        asks = (ask_of(task, self.scheduler, pools) for task in tasks)
        for resource in sorted({name for ask in asks for name in ask.not_offered}):
            words = f"tasks wait for {impossible.not_offered(resource)}"
            self._say(resource, words, tasks, now)
        pool = self._pools.facts(tag, pools)
        cause = without_workers(pool)
        if tag not in pools:
            asked = [t for t in tasks if TAG_ANNOTATION in (t.annotations or {})]
            words = impossible.no_pool(tag, pools, managed=bool(pools))
            self._fail(asked, NoWorkersError(words))
            return
        slots = pools[tag].slots
        asked = [t for t in tasks if tag in (t.resource_restrictions or {})]
        large = [t for t in asked if not fits(t.resource_restrictions, tag, slots)]
        self._fail(large, ClusterError(impossible.too_many_slots(tag, slots)))
        if cause is not None and cause.reason is Reason.MANAGER_FAILS:
            self._fail(tasks, NoWorkersError(impossible.degraded(tag, cause.words)))
        elif cause is not None:
            waiting = "1 task waits" if len(tasks) == 1 else f"{len(tasks)} tasks wait"
            # Without the durations in the words, which would make each message a new one.
            why = f"{cause.reason} {pools[tag].waiting or ''}"
            self._say(tag, f"{waiting} for {shown(tag)}: {cause}", tasks, now, why=why)

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

    def _fail(self, tasks: Iterable[TaskState], error: ClusterError) -> None:
        failing = list(tasks)
        for task in failing:
            logger.error("task %s fails: %s", task.key, error)
        fail_tasks(self.scheduler, failing, error)


def _clients_of(tasks: Iterable[TaskState]) -> set[str]:
    """Return the ids of the clients waiting for tasks, or ``EVERYBODY`` if some are unknown."""
    clients: set[str] = set()
    for task in tasks:
        wanting = {client.client_key for client in task.who_wants or ()}
        # A client of this name belongs to a worker: the user waits for the task that waits.
        unknown = not wanting or any("-worker-" in client for client in wanting)
        clients |= {EVERYBODY} if unknown else wanting
    return clients
