"""Link between a reconciler and the scheduler of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.manager.units import WorkerView
from scalable.model.clusters import PoolStatus, pools_to_dict
from scalable.pricing.metering import Charge
from scalable.protocol.events import Event
from scalable.protocol.handlers import SchedulerCalls


@dataclass(frozen=True)
class SchedulerView:
    """Scheduler's answer to a heartbeat."""

    #: Connected workers of this manager, by name.
    workers: Mapping[str, WorkerView]
    #: Mean seconds of the slowest kind of task, 0 before any task has run.
    longest_s: float = 0.0
    #: Serial number of the order and number of workers to provide, by tag.
    orders: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: True if this process is attached, False if another process has the manager's id.
    known: bool = True
    #: True if the cluster is stopping, so that all units must be stopped.
    end: bool = False
    #: Last addresses, by name, of workers that were stopped or announced their exit. Not crashes.
    dismissed: Mapping[str, str] = field(default_factory=dict)
    #: Last addresses, by name, of workers that were lost while they had tasks. Not failed starts.
    lost_at_work: Mapping[str, str] = field(default_factory=dict)
    #: True if the next reports have to contain charges.
    counts_costs: bool = False


@dataclass(frozen=True)
class HeartbeatReport:
    """Contents of a manager's heartbeat."""

    pools: Mapping[str, PoolStatus]
    #: Names of the manager's workers.
    workers: tuple[str, ...] = ()
    #: Events about workers and pools since the last heartbeat.
    events: tuple[Event, ...] = ()
    #: Charges by unit, for all charged units. None if the scheduler counts no costs.
    charges: Mapping[str, Charge] | None = None


class SchedulerLink:
    """Link to a scheduler with a :class:`~scalable.scheduler.controller.Controller`.
    ``comm`` is Dask's ``rpc`` object. ``nonce`` identifies this process, as in the attachment.
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

    async def heartbeat(self, report: HeartbeatReport) -> SchedulerView:
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
            # A scheduler of an earlier version does not send these.
            lost_at_work=answer.get("lost_at_work", {}),
            counts_costs=answer.get("counts_costs", False),
        )
