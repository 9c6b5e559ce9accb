"""Workers that leave a scheduler: emptied first, or forgiven."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.protocol.dask_seams.scheduler import LostWorker, excuse_loss_of_task
from scalable.scheduler.drain import Drain

REMEMBERED_LOSSES = 1000


class Departures:
    """Drains workers by name, and remembers which calls a lost one took with it.

    Parameters
    ----------
    scheduler
        Whose workers these are.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._drains: dict[str, Drain] = {}
        self._names = {a: str(ws.name) for a, ws in scheduler.workers.items()}
        self._lost_with: dict[str, tuple[Any, ...]] = {}
        self._withheld: set[str] = set()

    def abandon(self) -> None:
        """Leave every worker as it is: the scheduler closes."""
        for drain in self._drains.values():
            drain.abandon()

    def state(self, worker: WorkerState) -> str | None:
        """How far a worker's draining is, or None."""
        drain = self._drains.get(worker.address)
        return None if drain is None else drain.state

    def drain(self, workers: Iterable[str]) -> None:
        """Begin to empty workers, by name. Idempotent; unknown names are ignored."""
        for ws in self.named(workers):
            if ws.address not in self._drains:
                self._drains[ws.address] = Drain(self.scheduler, ws)

    def withhold_work(self, workers: Iterable[str]) -> list[str]:
        """Give these workers nothing to run if they connect after all; returns those that did.

        A unit that is ended while it starts may still connect. It would be given the whole queue,
        and its end would count against every call in it.
        """
        names = set(workers)
        self._withheld |= names
        return [str(ws.name) for ws in self.named(names)]

    def allow_work(self, workers: Iterable[str]) -> None:
        """Let workers of these names connect again."""
        self._withheld.difference_update(workers)

    def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again, where it is not too late."""
        for ws in self.named(workers):
            drain = self._drains.get(ws.address)
            if drain is not None and drain.cancel():
                del self._drains[ws.address]

    def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them.

        Dask gives a call up at the fourth lost worker.
        """
        for name in workers:
            for key in self._lost_with.pop(name, ()):
                task = self.scheduler.tasks.get(key)
                if task is not None:
                    excuse_loss_of_task(task)

    def named(self, names: Iterable[str]) -> list[WorkerState]:
        """Connected workers of these names."""
        wanted = set(names)
        return [ws for ws in self.scheduler.workers.values() if str(ws.name) in wanted]

    # What the scheduler tells ---------------------------------------------------------------------

    def connected(self, worker: WorkerState) -> None:
        """Learn a worker's name: when it is lost only its address is known."""
        name = self._names[worker.address] = str(worker.name)
        if name in self._withheld:
            self.drain([name])

    def left(self, address: str) -> None:
        """Forget the draining of a worker that left."""
        drain = self._drains.pop(address, None)
        if drain is not None and drain.state != "done" and address not in self.scheduler.workers:
            drain.state = "done"

    def log_event(self, topic: Any, msg: Any) -> None:
        """Remember which calls a lost worker took with it."""
        lost = LostWorker.of(topic, msg)
        if lost is not None:
            name = self._names.pop(lost.address, None)
            if name is not None and not lost.expected:
                self._lost_with[name] = lost.running
                while len(self._lost_with) > REMEMBERED_LOSSES:
                    del self._lost_with[next(iter(self._lost_with))]
