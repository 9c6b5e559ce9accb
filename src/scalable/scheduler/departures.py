"""Workers that leave: draining before a planned stop, and the tasks of lost workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.protocol.dask_seams.connections import ignore_worker_status
from scalable.protocol.dask_seams.scheduler import (
    LostWorker,
    excuse_loss_of_task,
    restarted_by_nannies,
)
from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler.drain import Drain
from scalable.scheduler.retirements import Retirements

logger = logging.getLogger("scalable.scheduler")

#: Number of lost workers whose tasks, or whose planned exit, are kept. A whole pool may vanish at
#: once.
REMEMBERED_LOSSES = 10_000
#: Largest number of worker names kept for :meth:`Departures.withhold_work`. The oldest are dropped.
MOST_WITHHELD = 10_000
#: Largest number of worker names kept for :meth:`Departures.begin`.
MOST_BEGUN = 100_000
#: Maximum number of characters of a drain's reason. The rest is cut off.
LONGEST_REASON = 500


class Departures:
    """Drains workers by name, and records how workers left and which tasks lost ones ran.
    Draining empties a worker before it stops: running tasks finish, results move elsewhere.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._drains: dict[str, Drain] = {}
        self._retirements = Retirements(scheduler)
        self._names = {a: str(ws.name) for a, ws in scheduler.workers.items()}
        self._lost_with: dict[str, tuple[Any, ...]] = {}
        self._excused: dict[str, None] = {}  # a set in order of insertion
        self._withheld: dict[str, None] = {}  # a set in order of insertion
        self._begun: dict[str, None] = {}
        self._gone: dict[str, str] = {}
        self._dismissed: dict[str, str] = {}
        self._reasons: dict[str, str] = {}  # of workers that have announced that they leave
        self._why: dict[str, str] = {}  # of all drained workers
        ignore_worker_status(scheduler, self._ignores)

    def abandon(self) -> None:
        """Stop all draining because the scheduler closes, leaving the workers as they are."""
        for drain in self._drains.values():
            drain.abandon()
        self._retirements.close()

    def state(self, worker: WorkerState) -> str | None:
        drain = self._drains.get(worker.address)
        return None if drain is None else drain.state

    def reason(self, worker: WorkerState) -> str | None:
        """Return why a worker leaves that has announced it, or None for other workers."""
        return self._reasons.get(worker.address)

    def notice(self, worker: str, left_s: float, reason: str) -> None:
        """Drain a worker that is preempted in ``left_s`` seconds, and excuse its lost tasks.
        The worker's manager finds the reason in its next heartbeat's answer and requests a
        successor at once. ``worker`` is an address.
        """
        ws = self.scheduler.workers.get(worker)
        if ws is None or worker in self._reasons:
            return
        logger.info("worker %s leaves within %.0f s: %s", ws.name, left_s, reason)
        self._reasons[worker] = reason
        self._dismiss(worker)
        self.excuse_losses([str(ws.name)])
        self.drain({str(ws.name): reason})
        self._drains[worker].leave_within(left_s)

    def why(self, worker: WorkerState) -> str:
        """Return why a worker is drained or leaves by itself, or "" for other workers."""
        return self._reasons.get(worker.address) or self._why.get(worker.address, "")

    def drain(self, workers: Mapping[str, str]) -> None:
        """Start to drain workers.
        ``workers`` maps names to reasons for the user. Unknown names, and workers that are being
        drained, are ignored.
        """
        for ws in self.named(workers):
            if ws.address not in self._drains:
                reason = self._why[ws.address] = str(workers[str(ws.name)])[:LONGEST_REASON]
                calls = len(ws.processing)
                logger.debug("worker %s is drained: %s; %d calls", ws.name, reason, calls)
                self._drains[ws.address] = Drain(self.scheduler, ws, self._retirements)

    def give_up(self, worker: str, key: Any) -> None:
        """Drain a worker that cannot interrupt a task, without waiting for this task.
        The worker's manager finds it drained in its next heartbeat's answer, and replaces it.
        """
        ws = self.scheduler.workers.get(worker)
        if ws is not None:
            logger.info("worker %s is replaced: call %s was interrupted and runs on", ws.name, key)
            self.drain({str(ws.name): "a call was interrupted on it and does not end"})
            self._drains[worker].give_up(key)

    def withhold_work(self, units: Iterable[Iterable[str]]) -> list[str]:
        """Give no work to the workers of these units, unless one of a unit's workers is connected.
        Return the names of the connected workers, whose units are left as they are. A unit may be
        stopped without draining only after this. Otherwise it could connect while it stops, get the
        whole queue, and its exit would count as a failure of every queued task.
        """
        present = {str(ws.name) for ws in self.scheduler.workers.values()}
        connected: list[str] = []
        for unit in map(list, units):
            here = present.intersection(unit)
            connected += here
            if not here:
                logger.debug("workers %s get no work if they connect", unit)
                self._withheld |= dict.fromkeys(unit)
        while len(self._withheld) > MOST_WITHHELD:
            del self._withheld[next(iter(self._withheld))]
        return connected

    def allow_work(self, workers: Iterable[str]) -> None:
        """Undo :meth:`withhold_work` for these names."""
        for name in workers:
            self._withheld.pop(name, None)

    def begin(self, worker: str) -> bool:
        """Return whether this is the first worker of this name, so that it may start.
        A worker whose program others than a manager may restart checks this before it connects.
        """
        if worker in self._begun:
            logger.warning("worker %s was started a second time: it is refused", worker)
            return False
        self._begun[worker] = None
        while len(self._begun) > MOST_BEGUN:
            del self._begun[next(iter(self._begun))]
        return True

    def resume(self, workers: Iterable[str]) -> list[str]:
        """Make draining workers accept work again, except those about to retire.
        Return the names of the workers that accept work.
        """
        accepting = []
        for ws in self.named(workers):
            drain = self._drains.get(ws.address)
            if drain is not None and drain.cancel():
                logger.debug("worker %s accepts work again", ws.name)
                del self._drains[ws.address]
                self._why.pop(ws.address, None)
            if ws.address not in self._drains:
                accepting.append(str(ws.name))
        return accepting

    def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the tasks that ran on them.
        By default Dask fails a task after four workers were lost while they ran it. A manager may
        report a loss before the scheduler notices it.
        """
        for name in workers:
            if name in self._lost_with:
                self._excuse(name, self._lost_with.pop(name))
            else:
                _remember(self._excused, name, None)

    def _excuse(self, name: str, keys: Iterable[Any]) -> None:
        logger.debug("the loss of worker %s is excused for the calls %s", name, keys)
        for key in keys:
            task = self.scheduler.tasks.get(key)
            if task is not None:
                excuse_loss_of_task(task)

    def _ignores(self, address: str, status: Status) -> bool:
        """Return whether a reported status is older than the order to accept no tasks.
        Each worker reports "running" after it has connected, even if it is drained from the start.
        Dask would assign tasks and results to it until it obeys.
        """
        drain = self._drains.get(address)
        return drain is not None and drain.has_closed and status is Status.running

    def dismissed(self, names: Iterable[str]) -> dict[str, str]:
        """Map those of the names whose worker did not crash to its last address.
        The scheduler stopped these workers, or they exited themselves, for example after a task
        exceeded its time limit.
        """
        return {name: self._dismissed[name] for name in names if name in self._dismissed}

    def named(self, names: Iterable[str]) -> list[WorkerState]:
        wanted = set(names)
        return [ws for ws in self.scheduler.workers.values() if str(ws.name) in wanted]

    # Hooks of the scheduler -----------------------------------------------------------------------

    def connected(self, worker: WorkerState) -> None:
        """Store a worker's name, because Dask reports a lost worker by its address only.
        A worker of a unit under :meth:`withhold_work` is drained at once.
        """
        name = self._names[worker.address] = str(worker.name)
        if self._dismissed.get(name) == worker.address:
            del self._dismissed[name]
        if name in self._withheld:
            logger.debug("worker %s connected although its unit is being stopped", name)
            self.drain({name: "its unit is being stopped"})

    def left(self, address: str) -> None:
        self._reasons.pop(address, None)
        self._why.pop(address, None)
        self._retirements.left(address)
        drain = self._drains.pop(address, None)
        if drain is not None and drain.state != "done" and address not in self.scheduler.workers:
            drain.state = "done"

    def log_event(self, topic: Any, msg: Any) -> None:
        if topic == LEAVING_TOPIC:
            self._dismiss(str(msg))
        for address in restarted_by_nannies(topic, msg):
            self._dismiss(address)
        lost = LostWorker.of(topic, msg)
        if lost is None or lost.address not in self._names:
            return
        name = self._names.pop(lost.address)
        _remember(self._gone, lost.address, name)
        self._withheld.pop(name, None)
        if lost.dismissed:
            self._dismiss(lost.address)
        if not lost.expected:
            logger.debug("worker %s is lost with %d calls", name, len(lost.running))
            if name in self._excused:
                self._excuse(name, lost.running)
            else:
                _remember(self._lost_with, name, lost.running)

    def _dismiss(self, address: str) -> None:
        name = self._names.get(address) or self._gone.get(address)
        if name is not None:
            logger.debug("worker %s at %s ends, and that is no crash", name, address)
            _remember(self._dismissed, name, address)


def _remember(entries: dict[str, Any], key: str, value: Any) -> None:
    """Add an entry, and drop the oldest entries beyond ``REMEMBERED_LOSSES``."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > REMEMBERED_LOSSES:
        del entries[next(iter(entries))]
