"""Subclass of Dask's scheduler for pools of tagged workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

import dask
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.connected_workers import iterate_fast
from scalable.dask_compat.connections import (
    RegisteringScheduler,
    TellingScheduler,
    compare_distinct_versions,
)
from scalable.dask_compat.connections import seams as connecting_seams
from scalable.dask_compat.ended_work import ForgettingScheduler
from scalable.dask_compat.extensions import extensions, without_sampling
from scalable.dask_compat.greeting import GreetingScheduler
from scalable.dask_compat.greeting import seams as greeting_seams
from scalable.dask_compat.nodes import CarryingScheduler
from scalable.dask_compat.nodes import seams as carrying_seams
from scalable.dask_compat.reruns import RetryingScheduler
from scalable.dask_compat.scheduler import (
    look_seldom,
    offer_on_streams,
    seams,
    tag_placement,
)
from scalable.dask_compat.shared_frames import share_memory
from scalable.dask_compat.stealing import pool_stealing
from scalable.protocol.guarded_http import GuardedHttp
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.operations import (
    CARRIES,
    CHECKPOINTS,
    CODE,
    FOUND,
    REMEMBERING,
    RETRIED,
    TASKS,
    VERSIONS,
)
from scalable.protocol.ports import NextFreePort
from scalable.protocol.private_node import PrivateNode
from scalable.protocol.thread_frames import read_frames_without_collection
from scalable.protocol.versions import ImageVersions
from scalable.scheduler.abandoned_calls import AbandonedCalls
from scalable.scheduler.bundle_relay import BundleRelay
from scalable.scheduler.checkpoints import CheckpointPlace
from scalable.scheduler.code_store import CodeStore
from scalable.scheduler.failures import Failures
from scalable.scheduler.ledger import Ledger
from scalable.scheduler.lost_workers import LostWorkers
from scalable.scheduler.nested_calls import NestedCalls
from scalable.scheduler.placement import TagPlacement
from scalable.scheduler.profiles import Profiles
from scalable.scheduler.remembered import take_found
from scalable.scheduler.retrying import Retrying
from scalable.scheduler.unknown_durations import UnknownDurations

logger = logging.getLogger("scalable.scheduler")

#: Modules with pages that are mounted next to Dask's in the scheduler's HTTP server.
LIVE_PAGE = "scalable.watch.dashboard.routes"
METRICS = "scalable.watch.metrics.routes"
_ROUTES = "distributed.scheduler.http.routes"


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for a peer that left while it connected, as workers may when a session stops."""
    return "UNEXPECTED_EOF_WHILE_READING" not in record.getMessage()


logging.getLogger("distributed.comm.tcp").addFilter(_is_news)


class PoolScheduler(
    GuardedHttp,
    PrivateNode,
    NextFreePort,
    ForgettingScheduler,
    RegisteringScheduler,
    TellingScheduler,
    GreetingScheduler,
    CarryingScheduler,
    RetryingScheduler,
):
    """Dask's scheduler with fast placement of tagged tasks, by default without HTTP server.
    It keeps workers that send no heartbeats. Dask would remove them after ``worker-ttl``, and a
    task that holds the GIL for that long would then run twice. Managers find out if a worker is
    still alive.
    """

    #: Tags by task name from the manifest. None without a manifest.
    tags_of_tasks: Mapping[str, str] | None = None
    #: Message with the manifest's cache settings. None without a manifest.
    remembering: Mapping[str, Any] | None = None
    #: Name of the cluster on the command line. "" for an embedded cluster.
    cluster_name = ""
    #: Upper limit of all workers on the cluster's target, or None.
    max_workers: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        carrying_seams.check()
        greeting_seams.check()
        connecting_seams.check()
        read_frames_without_collection()
        share_memory()
        compare_distinct_versions()
        kwargs.setdefault("extensions", extensions())
        if (stealing := pool_stealing()) is not None:
            logger.warning(
                "idle workers take calls by Dask's own rule, over all pools: %s", stealing
            )
        if (sampling := without_sampling()) is not None:
            logger.warning("for each result to move, Dask compares all workers: %s", sampling)
        routes = list(dask.config.get(_ROUTES))
        # The routes are read at the start, even by schedulers that open no HTTP port.
        if kwargs.get("dashboard_address"):
            # Of two routes with the same address the first is used: our metrics contain Dask's.
            routes = [METRICS, *(r for r in routes if r not in (METRICS, LIVE_PAGE)), LIVE_PAGE]
        with dask.config.set({"distributed.scheduler.worker-ttl": None, _ROUTES: routes}):
            super().__init__(*args, **kwargs)
        look_seldom(self)
        iterate_fast(self)
        self.code = CodeStore(self)
        self.checkpoints = CheckpointPlace(self)
        self.image_versions = ImageVersions.of_this_process()
        self.retrying, self.failures = Retrying(self), Failures(self)
        self.lost_workers = LostWorkers(self, self.retrying)
        self.relay = BundleRelay()
        self.relay.install(self)
        self.add_plugin(self.relay)
        self.add_plugin(AbandonedCalls(self))
        self.profiles, self.nested = Profiles(self), NestedCalls()
        Ledger.of(self).listen(self.profiles)
        Ledger.of(self).listen(self.nested)
        UnknownDurations(self)
        offer_on_streams(self, FOUND, partial(take_found, Ledger.of(self).hear))
        offer(self, {Handler.LIVE_PAGE: lambda: self.live_page})
        self.placement: TagPlacement | None = None
        other = tag_placement()
        if other is None:
            self.placement = TagPlacement(self)
        else:
            logger.warning(
                "tagged calls are placed by Dask's own rule, which takes longer the more workers "
                "there are: %s",
                other,
            )

    def identity(self, n_workers: int = -1) -> dict[str, Any]:
        """Return Dask's facts about this scheduler, and those that our clients need."""
        ours: dict[str, Any] = {CODE: True, FOUND: True, CARRIES: self.code.carries}
        ours[CHECKPOINTS] = True
        ours[RETRIED] = self.retrying.tasks()
        if self.image_versions is not None:
            ours[VERSIONS] = self.image_versions.to_message()
        if self.tags_of_tasks is not None:
            ours[TASKS] = dict(self.tags_of_tasks)
        if self.remembering is not None:
            ours[REMEMBERING] = dict(self.remembering)
        return {**super().identity(n_workers), **ours}

    async def close(self, *args: Any, **kwargs: Any) -> None:
        await super().close(*args, **kwargs)
        await self.checkpoints.remove()

    async def before_graph(self, code: str) -> None:
        """Wait for the files of the client whose graph is unpickled next."""
        await self.code.prepare(code)

    def at_graph(self, code: str) -> None:
        """Load modules in the versions of the client whose graph is unpickled next."""
        self.code.use(code)

    def made_in_call(self, parent: Any, keys: Iterable[Any]) -> None:
        self.nested.made(parent, keys)

    def tries_again(self, task: TaskState, worker: str, details: Mapping[str, Any]) -> bool | None:
        """Return whether a failed task is retried, or None to leave it to Dask."""
        return self.retrying.erred(task, worker, details)

    def decide_worker_non_rootish(self, ts: TaskState) -> WorkerState | None:
        if self.retrying.holds(ts):
            return None
        if self.placement is not None and self.placement.takes(ts):
            return self.placement.choose(ts)
        return super().decide_worker_non_rootish(ts)

    def add_resources(self, worker: str, resources: Any = None) -> Literal["OK"]:
        answer = super().add_resources(worker, resources)
        if self.placement is not None:
            self.placement.forget()
        return answer

    def remove_resources(self, worker: str) -> None:
        super().remove_resources(worker)
        if self.placement is not None:
            self.placement.forget()
