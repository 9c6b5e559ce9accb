"""Lets one pool of a cluster follow its load, touching no other pool's workers."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tornado.ioloop import PeriodicCallback

from scalable.units import parse_duration

if TYPE_CHECKING:
    from scalable.cluster.controller import Controller


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
    controller
        Of the cluster whose pool it is.
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
        controller: Controller,
        tag: str,
        minimum: int,
        maximum: int | None,
        *,
        interval: float | str = 1.0,
        idle_s: float = 15.0,
    ) -> None:
        self.tag = tag
        self.minimum = minimum
        self.maximum = maximum
        self.idle_s = idle_s
        self.periodic_callback: PeriodicCallback | None = None
        self._controller = controller
        self._loop: Any = controller.scheduler.loop
        self._interval = parse_duration(interval)
        self._too_many_since: float | None = None

    def start(self) -> None:
        """Begin, in the scheduler's event loop."""
        self.periodic_callback = PeriodicCallback(self.adapt, self._interval * 1000)
        self._loop.add_callback(self.periodic_callback.start)

    def stop(self) -> None:
        """End; the pool keeps the count that it has."""
        if self.periodic_callback is not None:
            self._loop.add_callback(self.periodic_callback.stop)
            self.periodic_callback = None

    def adapt(self) -> None:
        """Look once, and scale the pool where its load asks for it."""
        pool = self._controller.pools()[self.tag]
        load = self._controller.load(self.tag)
        now = time.monotonic()
        if math.ceil(load / pool["slots"]) >= pool["wanted"]:
            self._too_many_since = None
        elif self._too_many_since is None:
            self._too_many_since = now
        idle = self._too_many_since is not None and now - self._too_many_since >= self.idle_s
        count = target_count(
            load=load,
            slots=pool["slots"],
            current=pool["wanted"],
            minimum=self.minimum,
            maximum=self.maximum,
            idle=idle,
        )
        if count != pool["wanted"] and self.periodic_callback is not None:
            reason = f"adaptive: {load} calls wait or run"
            self._controller.scale({self.tag: count}, source="adaptive", reason=reason)
