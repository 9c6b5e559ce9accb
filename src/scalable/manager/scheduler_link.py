"""How a reconciler speaks with the scheduler that its workers belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalable.manager.units import WorkerView
from scalable.protocol.events import Event
from scalable.spec.clusters import PoolStatus, pools_to_dict


@dataclass(frozen=True)
class SchedulerView:
    """What the scheduler says of its workers.

    Attributes
    ----------
    workers
        Name -> worker.
    longest_s
        Mean running time of the kind of call that takes longest, 0 where nothing has run.
    orders
        Tag -> serial number and count of what is wanted of this manager.
    known
        Whether the scheduler knows this manager; otherwise another process bears its id.
    end
        Whether the cluster ends, and every unit with it.
    """

    workers: Mapping[str, WorkerView]
    longest_s: float = 0.0
    orders: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    known: bool = True
    end: bool = False


@dataclass(frozen=True)
class Report:
    """What a manager tells the scheduler with each heartbeat.

    Attributes
    ----------
    pools
        Tag -> counts.
    workers
        Names of the workers that it knows.
    events
        What happened to units and pools since the last one.
    """

    pools: Mapping[str, PoolStatus]
    workers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


class SchedulerLink(Protocol):
    """How a reconciler speaks with the scheduler that its workers belong to."""

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Report the pools; learn of the workers, and what is wanted."""

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
    """Speaks with a scheduler that has a :class:`~scalable.scheduler.controller.Controller`.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object for the scheduler.
    manager
        Id under which the pools are reported.
    nonce
        Text of this very process, as it was given when the manager attached.
    """

    def __init__(self, comm: Any, manager: str, nonce: str) -> None:
        self._comm = comm
        self._manager = manager
        self._nonce = nonce

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Report the pools; learn of the workers, and what is wanted."""
        answer = await self._comm.scalable_heartbeat(
            manager=self._manager,
            nonce=self._nonce,
            pools=pools_to_dict(report.pools),
            workers=list(report.workers),
            events=list(report.events),
        )
        return SchedulerView(
            workers={name: WorkerView(**view) for name, view in answer["workers"].items()},
            longest_s=answer["longest_s"],
            orders={tag: (serial, count) for tag, (serial, count) in answer["orders"].items()},
            known=answer["known"],
            end=answer["end"],
        )

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
