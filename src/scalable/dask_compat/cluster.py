"""Seams of Dask's ``Cluster`` and ``SpecCluster``."""

from __future__ import annotations

import logging
import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from typing import Any

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import SpecCluster
from tornado.util import TimeoutError as TornadoTimeout

logger = logging.getLogger("scalable.clusters")


def _ignore_unread_timeouts(cluster: Cluster) -> None:
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
    _ignore_unread_timeouts(cluster)


def loop_runs(cluster: Cluster) -> bool:
    """Return whether a cluster object's event loop runs, so that coroutines can be awaited."""
    loop = getattr(cluster.loop, "asyncio_loop", None)
    return not sys.is_finalizing() and loop is not None and loop.is_running()


# SpecCluster --------------------------------------------------------------------------------------


class ManagedSpecCluster(SpecCluster):
    """A ``SpecCluster`` whose subclass, not Dask, starts and stops the workers.

    The subclass defines the methods that raise NotImplementedError here. A unit is one process, job
    or object that provides one worker or a group of workers. Relies on ``SpecCluster._start``,
    ``_close``, ``_correct_state``, ``_correct_state_internal``, ``_correct_state_waiting`` and
    ``_update_worker_status``, on ``Cluster._update_worker_status``, ``Cluster._supports_scaling``
    and ``Cluster._adaptive``, and on ``SpecCluster._i`` and ``_new_worker_name``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._process = os.getpid()
        super().__init__(*args, **kwargs)
        if not self.asynchronous:
            _ignore_unread_timeouts(self)

    def close(self, timeout: float | None = None) -> Any:
        """Stop the cluster. Does nothing in a fork of its process, where Dask calls it at exit."""
        if os.getpid() != self._process:
            return None
        try:
            return super().close(timeout)
        except RuntimeError as error:
            # To end the threads of an event loop, asyncio starts another one, which Python 3.12
            # refuses while it exits. They end with the process.
            if "at interpreter shutdown" not in str(error):
                raise
            logger.debug("the event loop was not closed: %s", error)
            return None

    async def _bring_in_line(self) -> None:
        """Start missing units and stop surplus ones. Called while the cluster runs."""
        raise NotImplementedError

    def _workers_changed(self) -> None:
        """Handle a worker that has connected to the scheduler or left it."""
        raise NotImplementedError

    @property
    def _can_grow(self) -> bool:
        """True if the cluster can start more workers than its specification lists."""
        raise NotImplementedError

    def _existing_units(self) -> dict[Any, Any]:
        """Map unit names to the units' Python objects, or to their records if they have none."""
        raise NotImplementedError

    async def _corrected(self) -> None:
        """Run a pass of :meth:`_bring_in_line`. Simultaneous callers share one pass."""
        await self._correct_state()

    async def _correct_now(self) -> None:
        """Run a pass of :meth:`_bring_in_line` that is not shared with other callers."""
        await self._correct_state_internal()

    async def _correct_state_internal(self) -> None:
        self._correct_state_waiting = None
        if self.status == Status.running:
            await self._bring_in_line()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Skips SpecCluster's own version, which closes and forgets a worker that was lost. A worker
        # that came and went before the list of workers was read is not in it.
        if op == "add" or msg in self.scheduler_info["workers"]:
            Cluster._update_worker_status(self, op, msg)  # noqa: SLF001
        self._workers_changed()

    def new_worker_spec(self) -> dict[Any, Any]:
        """Map the name of a new worker to its specification. Names are never reused."""
        made: dict[Any, Any] = super().new_worker_spec()
        self._i += 1
        return made

    @classmethod
    def _names_new_workers(cls, base: type[SpecCluster]) -> bool:
        """Return whether this subclass of ``base`` overrides the naming or creation of workers."""
        return (
            cls.new_worker_spec is not base.new_worker_spec
            or cls._new_worker_name is not base._new_worker_name  # noqa: SLF001
        )

    def _stop_adapting_as_dask(self) -> None:
        """Stop the object created by Dask's ``adapt``, if any."""
        if self._adaptive is not None:
            self._adaptive.stop()
            self._adaptive = None

    @property
    def _supports_scaling(self) -> bool:  # type: ignore[override]
        return self._can_grow

    @property
    def workers(self) -> dict[Any, Any]:
        """Objects of the existing units by name. A unit without a Python object has its record."""
        return self._existing_units()

    @workers.setter
    def workers(self, _: Mapping[Any, Any]) -> None:
        pass  # SpecCluster's constructor sets an empty dictionary
