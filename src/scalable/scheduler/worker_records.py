"""One record for each worker: whether it is connected or drained, and how its processes ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.dask_compat.scheduler import LostWorker, restarted_by_nannies
from scalable.dask_compat.tasks import begun_on
from scalable.protocol.handlers import LossReason
from scalable.protocol.operations import LEAVING_TOPIC

logger = logging.getLogger("scalable.scheduler")

#: Number of records of workers that are not connected. The oldest are dropped. It covers the loss
#: of several whole pools at once.
KEPT_WORKERS = 20_000


class Stage(StrEnum):
    """State of a worker."""

    #: Announced, but not connected.
    STARTING = "starting"
    RUNNING = "running"
    #: Gets no more tasks, and leaves once it is idle.
    DRAINING = "draining"
    #: It was stopped, or has announced its end: this is not a crash.
    DISMISSED = "dismissed"
    #: Its connection has ended, and nobody has announced this.
    LOST = "lost"


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """Facts about the worker with one name. Several processes may have had the name in turn."""

    name: str
    #: Dask's state while the worker is connected.
    state: WorkerState | None = None
    #: Addresses of its latest process and of the one before. Empty before they connect.
    address: str = ""
    address_before: str = ""
    #: First resource that it offers, and its memory limit in bytes.
    tag: str = ""
    memory_limit: int = 0
    #: True once a process with the name has announced its start.
    started: bool = False
    #: True if it gets no task if it connects, because its unit is being stopped.
    withheld: bool = False
    #: The drain, and the reason to leave that the worker itself has announced.
    drain: Any = None
    leaves: str | None = None
    #: Monotonic time of the end of its walltime, and the walltime in seconds.
    walltime: tuple[float, float] | None = None
    #: Addresses of its latest processes that were dismissed, and that were lost with tasks.
    dismissed_at: str = ""
    lost_at_work: str = ""
    #: Keys of the tasks that were lost with it, and of those of them that had started there.
    keys: tuple[Any, ...] = ()
    begun: frozenset[Any] = frozenset()
    #: True if its loss will not count as a failed attempt of its tasks; if its loss has counted.
    excused: bool = False
    excusable: bool = False
    #: True if its backend stopped it for using too much memory; if it has reported this itself, and
    #: its tasks were counted.
    exceeded_memory: bool = False
    counted: bool = False
    reason: LossReason | None = None
    #: Whether the last row of its manager is about its removal. None if there is no row.
    managed: bool | None = None
    #: Span that was last added to the timeline.
    span: list[Any] | None = None

    @property
    def stage(self) -> Stage:
        if not self.address:
            return Stage.STARTING
        if self.state is not None and self.drain is not None:
            return Stage.DRAINING
        if self.dismissed_at == self.address:
            return Stage.DISMISSED
        return Stage.LOST if self.state is None else Stage.RUNNING

    def view(self) -> dict[str, Any]:
        """Return the fields of a manager's ``WorkerView`` that are not empty."""
        ends = {"dismissed_at": self.dismissed_at, "lost_at_work": self.lost_at_work}
        view: dict[str, Any] = {name: address for name, address in ends.items() if address}
        if (ws := self.state) is not None:
            view |= {
                "address": ws.address,
                "processing": len(ws.processing),
                "occupancy": ws.occupancy,
                "nbytes": ws.nbytes,
                "drain": self.drain and self.drain.state,
                "leaves": self.leaves,
            }
        return view


class WorkerRecords:
    """Records of the workers of one scheduler, kept by its task log."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._connected: dict[str, WorkerRecord] = {}
        self._others: dict[str, WorkerRecord] = {}  # the oldest first
        self._at: dict[str, WorkerRecord] = {}
        for worker in scheduler.workers.values():
            self.connected(worker)

    def __iter__(self) -> Iterator[WorkerRecord]:
        """Iterate over the records of connected workers."""
        return iter(self._connected.values())

    def get(self, name: str) -> WorkerRecord | None:
        return self._connected.get(name) or self._others.get(name)

    def of(self, name: str) -> WorkerRecord:
        """Return the record of a name, adding one if there is none."""
        record = self.get(name)
        if record is None:
            record = WorkerRecord(name)
            self._keep(record)
        return record

    def at(self, address: str) -> WorkerRecord | None:
        """Return the record of a process that is connected, or has left lately."""
        return self._at.get(address)

    def name_at(self, address: str | None) -> str | None:
        record = self._at.get(address or "")
        return None if record is None else record.name

    def _keep(self, record: WorkerRecord) -> None:
        self._others[record.name] = record
        while len(self._others) > KEPT_WORKERS:
            dropped = self._others.pop(next(iter(self._others)))
            for address in (dropped.address, dropped.address_before):
                if self._at.get(address) is dropped:
                    del self._at[address]

    # Hooks of the scheduler -----------------------------------------------------------------------

    def connected(self, worker: WorkerState) -> None:
        record = self.of(str(worker.name))
        self._others.pop(record.name, None)
        self._connected[record.name] = record
        if record.address != worker.address:
            if self._at.get(record.address_before) is record:
                del self._at[record.address_before]
            record.address_before, record.address = record.address, worker.address
        self._at[worker.address] = record
        record.state, record.span = worker, None
        record.tag, record.memory_limit = next(iter(worker.resources), ""), worker.memory_limit
        if record.dismissed_at == worker.address:
            record.dismissed_at = ""

    def lost(self, lost: LostWorker) -> None:
        """Record how a connected worker leaves, before Dask moves its tasks."""
        record = self._at.get(lost.address)
        if record is None or record.state is None:
            return
        record.withheld = False
        if lost.dismissed:
            self.dismiss(lost.address)
        known = self._scheduler.tasks
        tasks = [known[key] for key in lost.running if key in known]
        record.begun = frozenset(task.key for task in begun_on(record.state, tasks))
        record.keys, record.excusable = (), not lost.expected
        if not lost.expected:
            record.keys = lost.running
            logger.debug("worker %s is lost with %d tasks", record.name, len(lost.running))
            if lost.running:
                record.lost_at_work = lost.address

    def left(self, address: str) -> None:
        """Record that a worker is no longer connected."""
        record = self._at.get(address)
        if record is not None and record.address == address:
            record.state = record.drain = record.leaves = record.span = None
            self._connected.pop(record.name, None)
            self._keep(record)

    def log_event(self, topic: Any, msg: Any) -> None:
        """Record workers that announce their end, or that nannies restart for a client."""
        if topic == LEAVING_TOPIC:
            self.dismiss(str(msg))
        for address in restarted_by_nannies(topic, msg):
            self.dismiss(address)

    def dismiss(self, address: str) -> None:
        """Record that the end of a process is not a crash."""
        record = self._at.get(address)
        if record is not None:
            logger.debug("worker %s at %s stops (not a crash)", record.name, address)
            record.dismissed_at = address

    # For managers and workers ---------------------------------------------------------------------

    def begin(self, worker: str) -> bool:
        """Return whether this worker may start: no other worker of its name has started."""
        record = self.of(worker)
        if record.started:
            logger.warning("worker %s was started a second time: it is refused", worker)
            return False
        record.started = True
        return True

    def withhold_work(self, units: Iterable[Iterable[str]]) -> list[str]:
        """Withhold work from units without a connected worker. Return connected workers' names.
        A unit is a job or process with workers. Required before it may be stopped without draining.
        """
        connected: list[str] = []
        for unit in map(list, units):
            here = [name for name in unit if name in self._connected]
            connected += here
            if not here:
                logger.debug("workers %s will get no work if they connect", unit)
                for name in unit:
                    self.of(name).withheld = True
        return connected

    def allow_work(self, workers: Iterable[str]) -> None:
        """Undo :meth:`withhold_work` for the given workers, which are about to start."""
        for name in workers:
            if (record := self.get(name)) is not None:
                record.withheld = False
                record.lost_at_work = ""  # of an earlier worker with the name
