"""Seams of Dask's ``Cluster``."""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop
from typing import Any

from distributed.deploy.cluster import Cluster
from tornado.util import TimeoutError as TornadoTimeout


def ignore_unread_timeouts(cluster: Cluster) -> None:
    """Prevent messages from a cluster's event loop about waits that its stop has cut off.
    Dask's connections wait a few milliseconds at a time, and the last time-out may remain unread.
    """

    def report(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), TornadoTimeout):
            loop.default_exception_handler(context)

    loop = getattr(cluster.loop, "asyncio_loop", None)
    if loop is not None and loop.get_exception_handler() is None:
        loop.set_exception_handler(report)


def start_loop(cluster: Cluster) -> None:
    """Start the event loop of a cluster object that is not asynchronous."""
    cluster._loop_runner.start()  # noqa: SLF001
    ignore_unread_timeouts(cluster)


def loop_runs(cluster: Cluster) -> bool:
    """Return whether a cluster object's event loop runs, so that coroutines can be awaited."""
    loop = getattr(cluster.loop, "asyncio_loop", None)
    return not sys.is_finalizing() and loop is not None and loop.is_running()
