"""How a reconciler speaks with the scheduler that its workers belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalable.manager.units import WorkerView
from scalable.protocol.events import Event
from scalable.protocol.handlers import SchedulerCalls
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

    async def withhold_work(self, workers: Iterable[str]) -> list[str]:
        """Give workers nothing to run if they connect after all; return those that did."""

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Let workers of these names be given work again when they connect."""

    async def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again."""

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of workers against the calls that ran on them."""


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
        calls = SchedulerCalls(comm)
        self._calls = calls
        self._manager = manager
        self._nonce = nonce
        self.drain = calls.drain
        self.withhold_work = calls.withhold_work
        self.allow_work = calls.allow_work
        self.resume = calls.resume
        self.excuse_losses = calls.excuse_losses

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Report the pools; return the workers, and what is wanted of this manager."""
        answer = await self._calls.heartbeat(
            self._manager, self._nonce, pools_to_dict(report.pools), report.workers, report.events
        )
        return SchedulerView(
            workers={name: WorkerView(**view) for name, view in answer["workers"].items()},
            longest_s=answer["longest_s"],
            orders={tag: (serial, count) for tag, (serial, count) in answer["orders"].items()},
            known=answer["known"],
            end=answer["end"],
        )
