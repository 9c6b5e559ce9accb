"""Dask's scheduler and what our pools need of it."""

from __future__ import annotations

import logging
from typing import Any, Literal

import dask
from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.scheduler import seams, tag_placement
from scalable.protocol.quiet_http import QuietHttp
from scalable.scheduler.bundle_relay import BundleRelay
from scalable.scheduler.placement import TagPlacement
from scalable.scheduler.profiles import Profiles

logger = logging.getLogger("scalable.scheduler")


class PoolScheduler(QuietHttp, Scheduler):
    """Dask's scheduler, quick at tagged calls, without an HTTP server that nobody asked for.

    It does not give up workers that are silent: a call that holds Python's lock for longer than
    Dask's worker-ttl would be run twice. Whether a worker lives is what its place says.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        with dask.config.set({"distributed.scheduler.worker-ttl": None}):
            super().__init__(*args, **kwargs)
        self.relay = BundleRelay()
        self.relay.install(self)
        self.add_plugin(self.relay)
        self.add_plugin(Profiles(self))
        self.placement: TagPlacement | None = None
        other = tag_placement()
        if other is None:
            self.placement = TagPlacement(self)
        else:
            logger.warning(
                "tagged calls are placed by Dask's own rule, whose time grows with the number of "
                "workers: %s",
                other,
            )

    def decide_worker_non_rootish(self, ts: TaskState) -> WorkerState | None:
        """Choose the worker of a call that is ready."""
        if self.placement is not None and self.placement.takes(ts):
            return self.placement.choose(ts)
        return super().decide_worker_non_rootish(ts)

    def add_resources(self, worker: str, resources: Any = None) -> Literal["OK"]:
        """Take note of what a worker offers."""
        answer = super().add_resources(worker, resources)
        if self.placement is not None:
            self.placement.forget()
        return answer

    def remove_resources(self, worker: str) -> None:
        """Forget what a worker offered."""
        super().remove_resources(worker)
        if self.placement is not None:
            self.placement.forget()
