"""The link between a reconciler and the scheduler of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalable.manager.units import WorkerView
from scalable.protocol.events import Event
from scalable.protocol.handlers import SchedulerCalls
from scalable.scaling.metering import Charge
from scalable.spec.clusters import PoolStatus, pools_to_dict


@dataclass(frozen=True)
class SchedulerView:
    """The scheduler's answer to a heartbeat.

    Attributes
    ----------
    workers
        Name -> connected worker of this manager.
    longest_s
        Mean running time in seconds of the slowest kind of call; 0 before any call has run.
    orders
        Tag -> (serial number of the order, number of workers that this manager must provide).
    known
        Whether this process is attached; False if another process has the manager's id.
    end
        Whether the cluster is ending, so that all units must be stopped.
    dismissed
        Name of a worker -> address that it had when it was ended by the scheduler, or announced
        its end: the end was no crash.
    counts_costs
        Whether the next reports have to contain charges.
    """

    workers: Mapping[str, WorkerView]
    longest_s: float = 0.0
    orders: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    known: bool = True
    end: bool = False
    dismissed: Mapping[str, str] = field(default_factory=dict)
    counts_costs: bool = False


@dataclass(frozen=True)
class Report:
    """The contents of a manager's heartbeat.

    Attributes
    ----------
    pools
        Tag -> counts of the pool's units.
    workers
        Names of the manager's workers.
    events
        Events about workers and pools since the last heartbeat.
    charges
        Name of a unit -> charge, for all units that their places charge for; None if the scheduler
        counts no costs.
    """

    pools: Mapping[str, PoolStatus]
    workers: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    charges: Mapping[str, Charge] | None = None


class SchedulerLink(Protocol):
    """The requests that a reconciler sends to the scheduler of its workers."""

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Send a report; return the manager's workers and orders."""

    async def drain(self, workers: Mapping[str, str]) -> None:
        """Empty workers, given with the reasons, and assign no more work to them."""

    async def withhold_work(self, units: Iterable[Iterable[str]]) -> list[str]:
        """Give no work to the workers of these units, unless a worker of the unit is connected.

        Parameters
        ----------
        units
            Names of the workers of each unit.

        Returns
        -------
        list of str
            Names of the workers that are connected. Their units are left as they are.
        """

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Undo :meth:`withhold_work` for these names."""

    async def resume(self, workers: Iterable[str]) -> list[str]:
        """Let draining workers accept work again, unless they are about to retire.

        Returns
        -------
        list of str
            The names of the workers that accept work.
        """

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them."""

    async def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Tell that the place has ended these workers because they used too much memory."""


class RpcLink:
    """Link to a scheduler that has a :class:`~scalable.scheduler.controller.Controller`.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object for the scheduler.
    manager
        Id of the manager, sent with each report.
    nonce
        Text that identifies this process, the same as in the manager's attachment.
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
        self.ended_for_memory = calls.ended_for_memory

    async def heartbeat(self, report: Report) -> SchedulerView:
        """Send a report; return the manager's workers and orders."""
        answer = await self._calls.heartbeat(
            self._manager,
            self._nonce,
            pools_to_dict(report.pools),
            report.workers,
            report.events,
            report.charges,
        )
        return SchedulerView(
            workers={name: WorkerView(**view) for name, view in answer["workers"].items()},
            longest_s=answer["longest_s"],
            orders={tag: (serial, count) for tag, (serial, count) in answer["orders"].items()},
            known=answer["known"],
            end=answer["end"],
            dismissed=answer["dismissed"],
            # A scheduler of an earlier version does not say.
            counts_costs=answer.get("counts_costs", False),
        )
