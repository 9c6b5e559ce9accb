"""The simulated workers of one process: they start, leave and die together or one by one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import resource
from collections.abc import Iterable

from distributed import Security

from simulated_workers import Behaviour, SimulatedWorker, Traffic


def open_many_files() -> None:
    """Let this process have as many connections as it may."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def collect_seldom() -> None:
    """Collect garbage seldom: that leaves the machine to what is measured."""
    gc.set_threshold(100_000, 50, 100)


class SimulatedWorkers:
    """The simulated workers of one process."""

    def __init__(
        self,
        scheduler: str,
        behaviour: Behaviour | None = None,
        *,
        security: Security | None = None,
        manager: str = "",
        registering: int = 50,
    ) -> None:
        self.workers: dict[str, SimulatedWorker] = {}
        self.traffic = Traffic()
        self.behaviour = behaviour or Behaviour()
        self._scheduler, self._security, self._manager = scheduler, security, manager
        self._hosts = itertools.count()
        # Handshakes share this process, and would all take too long if they began together.
        self._gate = asyncio.Semaphore(registering)

    async def add(self, names: Iterable[str], tag: str = "") -> None:
        """Start workers; return when all have registered."""
        await asyncio.gather(*(self.start(name, tag) for name in names))

    async def start(self, name: str, tag: str = "") -> SimulatedWorker:
        """Start one worker, after the time that its start takes; return it once it registered."""
        await asyncio.sleep(self.behaviour.start_s())
        async with self._gate:
            return await self._started(name, tag)

    async def _started(self, name: str, tag: str) -> SimulatedWorker:
        number = next(self._hosts)
        worker = SimulatedWorker(
            self._scheduler,
            name,
            tag,
            behaviour=self.behaviour,
            security=self._security,
            manager=self._manager,
            host=f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{1 + number % 250}",
            traffic=self.traffic,
        )
        await worker.start()
        self.workers[name] = worker
        return worker

    async def close(self) -> None:
        """End all workers."""
        await self.end(len(self.workers))

    async def end(self, count: int, *, dies: bool = False) -> None:
        """End the first workers: they leave as if told to, or die without a word."""
        ending = [self.workers.pop(name) for name in list(self.workers)[:count]]
        await asyncio.gather(*(w.die() if dies else w.leave() for w in ending))
