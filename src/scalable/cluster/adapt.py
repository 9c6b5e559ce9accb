"""Lets one pool of a cluster follow its load, touching no other pool's workers."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tornado.ioloop import PeriodicCallback

from scalable.units import parse_duration

if TYPE_CHECKING:
    from scalable.cluster.pool_cluster import PoolCluster


def target_count(
    *, load: int, slots: int, current: int, minimum: int, maximum: int | None, idle: bool
) -> int:
    """How many workers a pool should have.

    Parameters
    ----------
    load
        Calls of the pool that wait or run.
    slots
        Calls that one worker runs at once.
    current
        Workers that are wanted now.
    minimum, maximum
        Bounds, both included.
    idle
        Whether the load has been lower than the workers for long enough to give some back.
    """
    needed = math.ceil(load / slots)
    count = needed if needed > current or idle else current
    return max(minimum, count if maximum is None else min(count, maximum))


class PoolAdaptive:
    """Follows the load of one pool: up at once, down when workers were too many for a while.

    Parameters
    ----------
    cluster
        Whose pool it is.
    tag
        The pool.
    minimum, maximum
        Bounds of the count; ``maximum`` None means without an upper bound.
    interval
        Seconds between two looks, or text such as ``"500ms"``.
    idle_s
        Seconds that workers must have been too many before some are given back.
    """

    def __init__(
        self,
        cluster: PoolCluster,
        tag: str,
        minimum: int,
        maximum: int | None,
        *,
        interval: float | str = 1.0,
        idle_s: float = 15.0,
    ) -> None:
        self.cluster = cluster
        self.tag = tag
        self.minimum = minimum
        self.maximum = maximum
        self.idle_s = idle_s
        self.periodic_callback: PeriodicCallback | None = None
        self._loop: Any = cluster.loop
        self._interval = parse_duration(interval)
        self._too_many_since: float | None = None

    def start(self) -> None:
        """Begin, in the cluster's event loop."""
        self.periodic_callback = PeriodicCallback(self.adapt, self._interval * 1000)
        self._loop.add_callback(self.periodic_callback.start)

    def stop(self) -> None:
        """End; the pool keeps the count that it has."""
        if self.periodic_callback is not None:
            self._loop.add_callback(self.periodic_callback.stop)
            self.periodic_callback = None

    async def adapt(self) -> None:
        """Look once, and scale the pool where its load asks for it."""
        comm: Any = self.cluster.scheduler_comm
        load = await comm.scalable_load(tag=self.tag)
        status = self.cluster.reconciler.status()[self.tag]
        now = time.monotonic()
        if math.ceil(load / status.slots) >= status.wanted:
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
        idle = self._too_many_since is not None and now - self._too_many_since >= self.idle_s
        count = target_count(
            load=load,
            slots=status.slots,
            current=status.wanted,
            minimum=self.minimum,
            maximum=self.maximum,
            idle=idle,
        )
        if count != status.wanted and self.periodic_callback is not None:
            self.cluster.want(self.tag, count, f"adaptive: {load} calls wait or run")
