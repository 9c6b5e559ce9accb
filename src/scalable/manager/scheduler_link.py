"""The link between a reconciler and the scheduler of its workers."""

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
    """The scheduler's answer to a heartbeat.

    Attributes
    ----------
    workers
        Name -> worker.
    longest_s
        Mean running time of the kind of call that takes longest, 0 where nothing has run.
    orders
        Tag -> serial number and wanted count of this manager's workers.
    known
        Whether the scheduler knows this manager; otherwise another process has its id.
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
    """The contents of a manager's heartbeat.

    Attributes
    ----------
    pools
        Tag -> counts.
    workers
        Names of the manager's workers.
    events
        Events of units and pools since the last heartbeat.
    """

    pools: Mapping[str, PoolStatus]
    workers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


class SchedulerLink(Protocol):
    """The requests of a reconciler to the scheduler of its workers."""

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Report the pools; return the workers and the wanted counts."""

    async def drain(self, workers: Iterable[str]) -> None:
        """Stop assigning work to these workers, and empty them."""

    async def withhold_work(self, workers: Iterable[str]) -> list[str]:
        """Refuse work to these workers when they connect; return those that have connected."""

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Revoke :meth:`withhold_work` for workers of these names."""

    async def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again."""

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of workers against the calls that ran on them."""


class RpcLink:
    """Link to a scheduler that has a :class:`~scalable.scheduler.controller.Controller`.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object for the scheduler.
    manager
        Id under which the pools are reported.
    nonce
        Text that identifies this process, as given when the manager attached.
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
        """Report the pools; return the workers and this manager's wanted counts."""
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
