"""Seams into Dask's ``SpecCluster``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import SpecCluster

from scalable.protocol.dask_seams.facts import Seams, declares, mentions

seams = Seams("cluster of pools")

_CLUSTER = "distributed.deploy.cluster:Cluster"
_SPEC = "distributed.deploy.spec:SpecCluster"


@seams.relies_on(
    mentions(f"{_SPEC}.__init__", "worker_spec", "workers", "_correct_state_waiting"),
    mentions(f"{_SPEC}.__init__", "_start", "_correct_state"),
    declares(f"{_SPEC}._start", "self"),
    declares(f"{_SPEC}._close", "self"),
    mentions(f"{_SPEC}._close", "_correct_state"),
    declares(f"{_SPEC}._correct_state", "self"),
    mentions(f"{_SPEC}._correct_state", "_correct_state_waiting", "_correct_state_internal"),
    declares(f"{_SPEC}._correct_state_internal", "self"),
    mentions(f"{_CLUSTER}._watch_worker_status", "_update_worker_status"),
    declares(f"{_CLUSTER}._update_worker_status", "self", "op", "msg"),
    declares(f"{_SPEC}._update_worker_status", "self", "op", "msg"),
    mentions(_CLUSTER, "_supports_scaling"),
)
class ManagedSpecCluster(SpecCluster):
    """A ``SpecCluster`` whose workers are started and stopped by somebody else.

    A subclass defines the methods that raise NotImplementedError here.

    Relies on ``SpecCluster._start``, ``_close``, ``_correct_state``, ``_correct_state_internal``,
    ``_correct_state_waiting`` and ``_update_worker_status``, on ``Cluster._update_worker_status``
    and on ``Cluster._supports_scaling``.
    """

    async def bring_in_line(self) -> None:
        """Start and stop units until those that exist are wanted; the cluster runs."""
        raise NotImplementedError

    def workers_changed(self) -> None:
        """Handle the arrival or departure of a worker at the scheduler."""
        raise NotImplementedError

    @property
    def can_grow(self) -> bool:
        """Whether the cluster can start workers that nobody described one by one."""
        raise NotImplementedError

    def existing_units(self) -> dict[Any, Any]:
        """Return name -> object of each unit that exists, or a record of the unit."""
        raise NotImplementedError

    async def corrected(self) -> None:
        """Wait until the units are in line; callers at the same time share one pass."""
        await self._correct_state()

    async def correct_now(self) -> None:
        """Bring the units in line in a pass of its own."""
        await self._correct_state_internal()

    async def _correct_state_internal(self) -> None:
        self._correct_state_waiting = None
        if self.status == Status.running:
            await self.bring_in_line()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster's own version closes and forgets a worker that was lost.
        Cluster._update_worker_status(self, op, msg)  # noqa: SLF001
        self.workers_changed()

    @property
    def _supports_scaling(self) -> bool:  # type: ignore[override]
        return self.can_grow

    @property
    def workers(self) -> dict[Any, Any]:
        """Name -> object of each unit that exists, or a record of the unit."""
        return self.existing_units()

    @workers.setter
    def workers(self, _: Mapping[Any, Any]) -> None:
        pass  # SpecCluster's constructor sets an empty dictionary


@seams.relies_on(
    mentions(f"{_SPEC}.__init__", "new_spec"),
    declares(f"{_SPEC}._memory_per_worker", "self"),
    mentions(f"{_SPEC}._memory_per_worker", "new_spec", "options", "memory_limit"),
)
def memory_per_worker(cluster: SpecCluster) -> int:
    """Return the bytes of memory of the workers that a cluster adds.

    Relies on ``SpecCluster._memory_per_worker``.
    """
    return int(cluster._memory_per_worker())  # noqa: SLF001


@seams.relies_on(
    mentions(f"{_SPEC}.__init__", "new_spec"),
    declares(f"{_SPEC}._threads_per_worker", "self"),
    mentions(f"{_SPEC}._threads_per_worker", "new_spec", "options", "nthreads"),
)
def threads_per_worker(cluster: SpecCluster) -> int:
    """Return the number of threads of the workers that a cluster adds.

    Relies on ``SpecCluster._threads_per_worker``.
    """
    return int(cluster._threads_per_worker())  # noqa: SLF001
