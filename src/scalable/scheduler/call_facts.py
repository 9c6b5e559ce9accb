"""Collection of the facts about tasks that explanations use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.tasks import (
    FailedTask,
    queued_tasks,
    since_no_worker,
)
from scalable.frames import own_frame_in
from scalable.model import PoolStatus
from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.protocol.operations import TAG_ANNOTATION
from scalable.protocol.pools import UNTAGGED, slots_of
from scalable.scheduler.pool_facts import PoolReader, name_of
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.task_log import (
    EndedTask,
    NestedCalls,
    Profiles,
    TaskLog,
    running_tasks,
)
from scalable.views.facts import CallFacts, Failure, NeededCall, NextTry, UnmetNeed

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
            children = self._children(task.key)
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
        row = self._profile(task.key)
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
        call = TaskLog.of(self._scheduler).call(failed.blamed or task.key)
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

    # From other plug-ins of the scheduler --------------------------------------------------------

    def _profiles(self) -> Profiles | None:
        profiles = getattr(self._scheduler, "profiles", None)
        return profiles if isinstance(profiles, Profiles) else None

    def _profile(self, key: Any) -> dict[str, Any] | None:
        profiles = self._profiles()
        return None if profiles is None else profiles.profile(key)

    def next_try(self, key: Any) -> NextTry | None:
        retrying = getattr(self._scheduler, "retrying", None)
        return retrying.next_try(key) if isinstance(retrying, Retrying) else None

    def _ready_s(self, task: TaskState) -> float | None:
        profiles = self._profiles()
        ready_at = None if profiles is None else profiles.ready_at(task.key)
        return None if ready_at is None else max(0.0, time.time() - ready_at)

    def _nested(self) -> NestedCalls | None:
        nested = getattr(self._scheduler, "nested", None)
        return nested if isinstance(nested, NestedCalls) else None

    def _parent(self, key: Any) -> str:
        nested = self._nested()
        parent = None if nested is None else nested.parent(key)
        task = None if parent is None else self._scheduler.tasks.get(parent)
        return str(parent) if task is not None and task.state == "processing" else ""

    def children_of(self, key: Any) -> list[TaskState]:
        """Return the unfinished tasks that a task has submitted."""
        nested = self._nested()
        keys = [] if nested is None else nested.children(key)
        tasks = [self._scheduler.tasks[k] for k in keys if k in self._scheduler.tasks]
        return [t for t in tasks if t.state not in ("memory", "erred", "forgotten", "released")]

    def _children(self, key: Any) -> list[Any]:
        return [task.key for task in self.children_of(key)]
