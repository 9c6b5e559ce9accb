"""A manager of a cluster whose workers are simulated: ``python simulated_manager.py DIRECTORY``.

It attaches to the cluster on record in DIRECTORY, and its reconciler is that of every manager. Its
place is this process, in which simulated workers start when they are asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.core import rpc

from scalable.clusters.managing import wait_for_scheduler
from scalable.liveness import identify_process
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.protocol.credentials import security_of
from scalable.protocol.handlers import Handler, request
from scalable.protocol.pools import Attachment
from scalable.records import ClusterDirectory
from simulated_workers import (
    Behaviour,
    SimulatedWorker,
    SimulatedWorkers,
    collect_seldom,
    open_many_files,
)

MANAGER = "simulated"
ENDED_AT_ONCE = 1000
#: Calls whose key contains this text end only when they are cancelled.
ENDLESS = "endless"


class SimulatedLauncher:
    """Launcher (see :mod:`scalable.manager.launcher`) whose units are simulated workers."""

    def __init__(self, workers: SimulatedWorkers, tag: str) -> None:
        self._workers, self._tag = workers, tag
        self._starts: dict[UnitName, asyncio.Task[SimulatedWorker]] = {}

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        for name in entries:
            started = self._workers.start(str(name), self._tag)
            self._starts[name] = asyncio.create_task(started)

    async def adopt(self) -> Mapping[UnitName, str]:
        """Return an empty mapping: the workers end with this process."""
        return {}

    async def stop(self, names: Sequence[UnitName]) -> None:
        for name in names:
            task = self._starts.pop(name, None)
            if task is None:
                continue
            task.cancel()
            await asyncio.wait([task])
            worker = self._workers.workers.pop(str(name), None)
            if worker is not None:
                await worker.leave()

    def observe(self) -> Mapping[UnitName, Observation]:
        return {name: self._observed(task) for name, task in self._starts.items()}

    @staticmethod
    def _observed(task: asyncio.Task[SimulatedWorker]) -> Observation:
        if not task.done():
            return Observation(UnitState.PENDING, "starting")
        if task.cancelled() or task.exception() is not None:
            return Observation(UnitState.ENDED, "it failed to start")
        if task.result().ended.is_set():
            return Observation(UnitState.ENDED, "it ended")
        return Observation(UnitState.RUNNING)

    def look_soon(self) -> None:
        """Do nothing: the states are those of the present."""

    async def logs(self, name: UnitName) -> str:  # noqa: ARG002 - they print nothing
        """Return an empty text."""
        return ""


def made_up(mean_s: float, failures: float) -> Behaviour:
    """Return a behaviour with lognormal running times of a mean, and a share of failures."""
    chance = random.Random(1)

    def call_s(key: Any) -> float:
        return 1e6 if ENDLESS in str(key) else chance.lognormvariate(-0.5, 1.0) * mean_s

    return Behaviour(call_s=call_s, fails=lambda _: chance.random() < failures)


async def manage(directory: ClusterDirectory, tags: Sequence[str], behaviour: Behaviour) -> None:
    """Attach to a cluster, and start and stop simulated workers until it ends."""
    address = wait_for_scheduler(directory)["address"]
    security = security_of(directory.pem())
    nonce = secrets.token_hex(3)
    workers = SimulatedWorkers(address, security, behaviour, manager=MANAGER)
    arguments = security.get_connection_args("client")
    # No worker counts as lost while it starts: a busy machine is slow.
    reconciler = Reconciler(f"{MANAGER}-{nonce}", start_timeout=3600.0)
    for tag in tags:
        launcher = SimulatedLauncher(workers, tag)
        reconciler.inventory.add_pool(Pool(tag, launcher, template={}))
    obey_signals(workers)
    async with rpc(address, timeout=60, connection_args=arguments) as comm:
        pools = {tag: {"slots": 1, "cpus": 1} for tag in tags}
        attachment = Attachment(
            MANAGER, nonce, identity=identify_process(), provider="simulated", pools=pools
        )
        answer = await request(comm, Handler.ATTACH, **attachment.to_message())
        if not answer["accepted"]:
            raise SystemExit(f"the scheduler refused the manager: {answer['reason']}")
        reconciler.start(comm, MANAGER, nonce)
        while not reconciler.end_wanted and reconciler.unreachable_s < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await reconciler.close()
        if reconciler.end_wanted:
            await request(comm, Handler.LEAVE, manager=MANAGER, nonce=nonce, gone=True)
    await workers.close()


def obey_signals(workers: SimulatedWorkers) -> None:
    """Let the first 1,000 workers, at most, die at a signal; at another, half or as many hang."""
    loop, ending = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def die() -> None:
        ending.add(asyncio.ensure_future(workers.end(ENDED_AT_ONCE, dies=True)))

    def hang() -> None:
        half = len(workers.workers) // 2
        for worker in list(workers.workers.values())[: min(half, ENDED_AT_ONCE)]:
            worker.hang()

    loop.add_signal_handler(signal.SIGUSR1, die)
    loop.add_signal_handler(signal.SIGUSR2, hang)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tags", nargs="+", default=["model", "post"])
    parser.add_argument("--call-seconds", type=float, default=0.5)
    parser.add_argument("--failures", type=float, default=0.005, help="share of calls that fail")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    open_many_files()
    collect_seldom()
    behaviour = made_up(asked.call_seconds, asked.failures)
    directory = ClusterDirectory(asked.directory)
    asyncio.run(manage(directory, asked.tags, behaviour))


if __name__ == "__main__":
    main()
