"""Subclass of Dask's scheduler for pools of tagged workers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any, Literal

import dask
from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.cache.checkpoints import REMEMBERED, Checkpoints, checkpoint_directory
from scalable.dask_compat import check_version
from scalable.dask_compat.comm import release_closed, share_memory
from scalable.dask_compat.scheduler import (
    ExtendedScheduler,
    compare_distinct_versions,
    send_to_worker,
    tasks_only_for,
)
from scalable.dask_compat.scheduler_extensions import extensions, forget_unknown_duration
from scalable.errors import ScalableError
from scalable.protocol.code import ImageVersions
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.operations import (
    CARRIES,
    CLUSTER,
    CODE_ANNOTATION,
    FOUND,
    INTERRUPT,
    MANAGER_KEY,
    REMEMBERING,
    RETRIED,
    TASKS,
    VERSIONS,
    WIRE,
    WIRE_VERSION,
    other_wire,
)
from scalable.protocol.servers import (
    GuardedHttp,
    NextFreePort,
    PrivateNode,
    read_frames_without_collection,
)
from scalable.scheduler.bundle_relay import BundleRelay
from scalable.scheduler.code_store import CodeStore
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.task_log import TaskLog
from scalable.scheduler.worker_records import Stage

logger = logging.getLogger("scalable.scheduler")

#: Module with pages that are mounted next to Dask's in the scheduler's HTTP server.
PAGES = "scalable.watch.pages"
_ROUTES = "distributed.scheduler.http.routes"
#: Seconds between a client's disconnection and the interruption of its running tasks.
GRACE_S = 10.0
#: Number of messages of each connection that Dask keeps for debugging, unless the user's
#: configuration sets it. Dask's 1,000 contain whole graphs: a scheduler grew by 2.3 kB a task
#: through 24,000 tasks, and by 0.1 kB with 10 messages.
KEPT_MESSAGES = {"distributed": {"admin": {"low-level-log-length": 50}}}
dask.config.update_defaults(KEPT_MESSAGES)


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for log records of peers that left while connecting."""
    return "UNEXPECTED_EOF_WHILE_READING" not in record.getMessage()


logging.getLogger("distributed.comm.tcp").addFilter(_is_news)


def _is_not_cancelled(record: logging.LogRecord) -> bool:
    """Return False for coroutines that a second Ctrl-C cancels with the scheduler's loop."""
    error = record.exc_info[0] if record.exc_info else None
    return error is not asyncio.CancelledError


logging.getLogger("distributed.scheduler").addFilter(_is_not_cancelled)


class PoolScheduler(GuardedHttp, PrivateNode, NextFreePort, ExtendedScheduler):
    """Dask's scheduler with fast placement of tagged tasks, by default without an HTTP server.
    Managers, rather than missing heartbeats, determine that a worker is lost.
    """

    #: Tags by task name from the manifest. None without a manifest.
    tags_of_tasks: Mapping[str, str] | None = None
    #: Message with the manifest's cache settings. None without a manifest.
    remembering: Mapping[str, Any] | None = None
    #: Name of the cluster on the command line. "" for an embedded cluster.
    cluster_name = ""
    #: Upper limit of all workers on the cluster's target, or None.
    max_workers: int | None = None
    #: Option of the target that sets this limit.
    limited_by = "max_workers"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version()
        read_frames_without_collection()
        share_memory()
        release_closed()
        compare_distinct_versions()
        kwargs.setdefault("extensions", extensions())
        routes = list(dask.config.get(_ROUTES))
        # The routes are read at the start, even by schedulers that open no HTTP port.
        if kwargs.get("dashboard_address"):
            # Of two routes with the same address the first is used: our metrics contain Dask's.
            routes = [PAGES, *(route for route in routes if route != PAGES)]
        with dask.config.set({"distributed.scheduler.worker-ttl": None, _ROUTES: routes}):
            super().__init__(*args, **kwargs)
        self.code = CodeStore(self)
        self.checkpoints = CheckpointPlace(self)
        self.image_versions = ImageVersions.of_this_process()
        self.retrying, log = Retrying(self), TaskLog.of(self)
        self.relay = BundleRelay()
        self.relay.install(self)
        self.add_plugin(self.relay)
        log.on_unfinished = partial(forget_unknown_duration, self)
        self.stream_handlers[FOUND] = log.found
        offer(self, {Handler.PROFILE: log.profile, Handler.FAILURES: log.failures})
        offer(self, {Handler.LIVE_PAGE: lambda: self.live_page})
        self.placement = TagPlacement(self)

    def identity(self, n_workers: int = -1) -> dict[str, Any]:
        """Return Dask's facts about this scheduler, and the facts that scalable's clients need."""
        ours: dict[str, Any] = {WIRE: WIRE_VERSION, CARRIES: self.code.carries}
        ours[CLUSTER] = self.cluster_name
        ours[RETRIED] = self.retrying.tasks()
        if self.image_versions is not None:
            ours[VERSIONS] = astuple(self.image_versions)
        if self.tags_of_tasks is not None:
            ours[TASKS] = dict(self.tags_of_tasks)
        if self.remembering is not None:
            ours[REMEMBERING] = dict(self.remembering)
        return {**super().identity(n_workers), **ours}

    async def add_worker(
        self, comm: Any, *, name: str = "", extra: Any = None, **facts: Any
    ) -> None:
        """Register a worker, or refuse one with other messages as Dask refuses a taken name."""
        if (error := other_wire(extra or {}, f"worker {name}", "the scheduler")) is None:
            await super().add_worker(comm, name=name, extra=extra, **facts)
        else:
            logger.warning("%s", error)
            await comm.write({"status": "error", "message": str(error), "time": time.time()})

    def heartbeat_worker(self, *, address: str, **facts: Any) -> dict[str, Any]:
        """Answer a heartbeat. That of a dismissed worker ends it, without a warning."""
        record = None if address in self.workers else TaskLog.of(self).workers.at(address)
        if record is not None and record.stage is Stage.DISMISSED:
            return {"status": "missing"}
        return super().heartbeat_worker(address=address, **facts)

    def remove_client(self, client: str, *args: Any, **kwargs: Any) -> None:
        """Release a client's tasks, and later stop the running ones that nobody else needs."""
        if assigned := list(tasks_only_for(self, client)):
            self.loop.call_later(GRACE_S, self._stop_abandoned, client, assigned)
        super().remove_client(client, *args, **kwargs)

    def _stop_abandoned(self, client: str, assigned: list[tuple[Any, str]]) -> None:
        for key, address in assigned:
            worker = self.workers.get(address)
            # If the scheduler still holds the task, another client needs it, perhaps in a graph.
            if key in self.tasks or worker is None:
                continue
            if worker.extra.get(MANAGER_KEY) is not None:
                logger.debug("task %s is stopped: its client %s has left", key, client)
                message = {"op": INTERRUPT, "key": key, "number": None, "client": client}
                send_to_worker(self, address, message)

    async def close(self, *args: Any, **kwargs: Any) -> None:
        await super().close(*args, **kwargs)
        await self.checkpoints.remove()

    async def update_graph(
        self, *args: Any, annotations: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Load the client's module versions and files, and then its graph."""
        await self.code.prepare(str((annotations or {}).get(CODE_ANNOTATION, "")))
        await super().update_graph(*args, **kwargs, annotations=annotations)  # type: ignore[misc,arg-type]
        if (parent := kwargs.get("submitting_task")) is not None:
            TaskLog.of(self).nest(parent, kwargs.get("keys") or ())

    def stimulus_task_erred(
        self, worker: str, stimulus_id: str, key: Any, run_id: int, **kwargs: Any
    ) -> Any:
        """Retry or fail a task by its retry policy, if it has one, or else as Dask does."""
        task = self.tasks.get(key)
        if task is not None and task.state == "processing" and task.run_id == run_id:
            again = self.retrying.erred(task, worker, kwargs)
            if again is not None:
                task.retries = int(again)
        return super().stimulus_task_erred(worker, stimulus_id, key, run_id, **kwargs)

    def decide_worker_non_rootish(self, ts: TaskState) -> WorkerState | None:
        if self.retrying.holds(ts):
            return None
        if self.placement.takes(ts):
            return self.placement.choose(ts)
        return super().decide_worker_non_rootish(ts)

    def handle_worker_status_change(self, *args: Any, **kwargs: Any) -> None:
        self.placement.forget()  # before Dask places tasks on a worker that runs again
        super().handle_worker_status_change(*args, **kwargs)

    def add_resources(self, worker: str, resources: Any = None) -> Literal["OK"]:
        answer = super().add_resources(worker, resources)
        self.placement.forget()
        return answer

    def remove_resources(self, worker: str) -> None:
        super().remove_resources(worker)
        self.placement.forget()


# Checkpoints --------------------------------------------------------------------------------------


class CheckpointPlace:
    """Creates a cluster's checkpoint directory when a task first needs one, and removes it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._group = secrets.token_hex(16)
        self._made: Checkpoints | None = None
        offer(scheduler, {Handler.CHECKPOINTS: self.prepared})

    async def prepared(self) -> dict[str, str] | None:
        """Return directory and group, or error and hint. None if no file system is shared."""
        if self._scheduler.code.carries:
            return None
        try:
            directory = checkpoint_directory((self._scheduler.remembering or {}).get("url"))
            self._made = Checkpoints(directory)
            for group in (REMEMBERED, self._group):
                await asyncio.to_thread(self._made.prepare, group)
        except ScalableError as error:
            return {"fault": error.message, "hint": error.hint or ""}
        return {"directory": str(directory), "group": self._group}

    async def remove(self) -> None:
        """Remove the checkpoints of tasks without cached results when the cluster stops."""
        if self._made is not None:
            await asyncio.to_thread(self._made.remove, self._group)


# Placement ----------------------------------------------------------------------------------------

#: Up to this number of workers, all of them are compared for each task, as Dask does.
FEW_WORKERS = 20
#: Number of workers that are compared for each task if there are more than ``FEW_WORKERS``.
COMPARED = 4
#: Largest number of workers compared for a task with inputs, among those that hold an input.
HOLDERS = 20


def _backlog(worker: WorkerState) -> tuple[float, int]:
    """Return Dask's sort key for tasks without input: seconds of work per thread, then bytes."""
    return worker.occupancy / worker.nthreads, worker.nbytes


class TagPlacement:
    """Chooses for each tagged task the next worker of its tag, or the best of the next few.
    Dask compares all workers, which takes 17 µs with 10 workers and 2.9 ms with 5,000.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._able: dict[tuple[str, float], tuple[WorkerState, ...]] = {}
        self._next = 0

    def forget(self) -> None:
        """Drop the cached lists, because workers or their resources have changed."""
        self._able.clear()

    @staticmethod
    def takes(task: TaskState) -> bool:
        """Return whether a task can be placed here: its only restriction must be one tag."""
        return (
            task.resource_restrictions is not None
            and len(task.resource_restrictions) == 1
            and not task.worker_restrictions
            and not task.host_restrictions
            and not task.actor
        )

    def choose(self, task: TaskState) -> WorkerState | None:
        """Return the worker for a task, or None if no running worker can take it."""
        ((tag, slots),) = task.resource_restrictions.items()  # type: ignore[union-attr]
        able = self._workers(tag, slots)
        if not able:
            return None
        if not task.dependencies:
            following = able[self._next % len(able)]
            if len(able) > FEW_WORKERS and not following.processing:
                self._next += 1
                return following
            return min(self._few(able), key=_backlog)
        candidates = self._holders(task, tag, slots) or self._few(able)
        return min(candidates, key=partial(self._scheduler.worker_objective, task))

    def few(self, task: TaskState) -> Sequence[WorkerState]:
        ((tag, slots),) = task.resource_restrictions.items()  # type: ignore[union-attr]
        return self._few(self._workers(tag, slots))

    def _workers(self, tag: str, slots: float) -> tuple[WorkerState, ...]:
        able = self._able.get((tag, slots))
        if able is None:
            scheduler = self._scheduler
            offered = scheduler.resources.setdefault(tag, {})
            able = self._able[tag, slots] = tuple(
                ws
                for address, amount in offered.items()
                if amount >= slots and (ws := scheduler.workers[address]) in scheduler.running
            )
        return able

    def _few(self, able: Sequence[WorkerState]) -> Sequence[WorkerState]:
        if len(able) <= FEW_WORKERS:
            return able
        self._next = (self._next + COMPARED) % len(able)
        return [able[(self._next + i) % len(able)] for i in range(COMPARED)]

    def _holders(self, task: TaskState, tag: str, slots: float) -> list[WorkerState]:
        scheduler, found = self._scheduler, dict[WorkerState, None]()
        for needed in task.dependencies:
            for ws in needed.who_has or ():
                if ws.resources.get(tag, 0) >= slots and ws in scheduler.running:
                    found[ws] = None
                    if len(found) == HOLDERS:
                        return list(found)
        return list(found)
