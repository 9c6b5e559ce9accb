"""How a reconciler speaks with the scheduler that its workers belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scalable.cluster.reconcile import WorkerView


@dataclass(frozen=True)
class SchedulerView:
    """What the scheduler says of its workers.

    Attributes
    ----------
    workers
        Name -> worker.
    longest_s
        Mean running time of the kind of call that takes longest, 0 where nothing has run.
    """

    workers: Mapping[str, WorkerView]
    longest_s: float = 0.0


class SchedulerLink(Protocol):
    """How a reconciler speaks with the scheduler that its workers belong to."""

    async def heartbeat(self, pools: Mapping[str, Mapping[str, Any]]) -> SchedulerView:
        """Report the pools; learn of the workers."""

    async def drain(self, workers: Iterable[str]) -> None:
        """Stop assigning work to these workers, and empty them."""

    async def bar(self, workers: Iterable[str]) -> list[str]:
        """Give these workers nothing to run if they connect after all; returns those that did."""

    async def admit(self, workers: Iterable[str]) -> None:
        """Let workers of these names connect again."""

    async def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again."""

    async def forgive(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them."""


class RpcLink:
    """Speaks with a scheduler that has a :class:`~scalable.cluster.controller.Controller`.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object for the scheduler.
    manager
        Name under which the pools are reported.
    """

    def __init__(self, comm: Any, manager: str) -> None:
        self._comm = comm
        self._manager = manager

    async def heartbeat(self, pools: Mapping[str, Mapping[str, Any]]) -> SchedulerView:
        """Report the pools; learn of the workers."""
        answer = await self._comm.scalable_heartbeat(
            manager=self._manager, pools={tag: dict(pool) for tag, pool in pools.items()}
        )
        workers = {name: WorkerView(**view) for name, view in answer["workers"].items()}
        return SchedulerView(workers, answer["longest_s"])

    async def drain(self, workers: Iterable[str]) -> None:
        """Stop assigning work to these workers, and empty them."""
        await self._comm.scalable_drain(workers=list(workers))

    async def bar(self, workers: Iterable[str]) -> list[str]:
        """Give these workers nothing to run if they connect after all; returns those that did."""
        return list(await self._comm.scalable_bar(workers=list(workers)))

    async def admit(self, workers: Iterable[str]) -> None:
        """Let workers of these names connect again."""
        await self._comm.scalable_admit(workers=list(workers))

    async def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again."""
        await self._comm.scalable_resume(workers=list(workers))

    async def forgive(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them."""
        await self._comm.scalable_forgive(workers=list(workers))
