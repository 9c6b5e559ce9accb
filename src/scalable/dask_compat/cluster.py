"""Seams of Dask's cluster objects."""

from __future__ import annotations

import sys

from distributed.deploy.cluster import Cluster

from scalable.dask_compat.facts import Seams, declares, mentions

seams = Seams("cluster object")

_CLUSTER = "distributed.deploy.cluster:Cluster"


@seams.relies_on(
    mentions(f"{_CLUSTER}.__init__", "_loop_runner", "scheduler_comm", "scheduler_info"),
    declares("distributed.utils:LoopRunner.start", "self"),
)
def start_loop(cluster: Cluster) -> None:
    """Start the event loop of a cluster object that is not asynchronous."""
    cluster._loop_runner.start()  # noqa: SLF001


@seams.relies_on(
    mentions("distributed.utils:sync", "asyncio_loop"),
    mentions(f"{_CLUSTER}.loop", "_loop_runner"),
)
def loop_runs(cluster: Cluster) -> bool:
    """Return whether a cluster object's event loop runs, so that coroutines can be awaited."""
    loop = getattr(cluster.loop, "asyncio_loop", None)
    return not sys.is_finalizing() and loop is not None and loop.is_running()


@seams.relies_on(
    declares(f"{_CLUSTER}._start", "self"),
    declares(f"{_CLUSTER}._close", "self"),
    declares(f"{_CLUSTER}.close", "self", "timeout"),
    mentions(f"{_CLUSTER}.close", "sync", "_close"),
)
def check_overrides() -> None:
    """Raise ClusterError unless Dask's cluster objects have the methods that we override."""
    seams.check()
