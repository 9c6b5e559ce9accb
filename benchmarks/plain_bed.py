"""Plain Dask beside us: its scheduler, and simulated workers, in processes of their own.

    python benchmarks/plain_bed.py scheduler DIRECTORY [--plain-tcp]
    python benchmarks/plain_bed.py workers DIRECTORY ADDRESS

DIRECTORY is that of a cluster on record, whose credentials both take. The workers obey the lines of
their standard input: ``add NAME NUMBER`` and ``leave NUMBER``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Scheduler, Security
from distributed.stealing import WorkStealing

from loop_meter import COUNT, Labels, LoopMeter, offer_measures
from measured_bed import HERE, MANIFEST, until
from measured_scheduler import record_cluster
from scalable.files import write_whole
from scalable.protocol.credentials import security_of
from scalable.records import ClusterDirectory
from simulated_process import SimulatedWorkers, collect_seldom, open_many_files

TAG = "model"
WHOLE: Labels = {
    "worker's heartbeat": (Scheduler, ("heartbeat_worker",)),
    "stealing": (WorkStealing, ("balance",)),
}
FOLLOWED: Labels = {
    "worker arrives": (Scheduler, ("add_worker",)),
    "worker leaves": (Scheduler, ("remove_worker",)),
}


class PlainBed:
    """Plain Dask's scheduler in a process of its own, its simulated workers, and a client."""

    def __init__(self, place: Path, *options: str) -> None:
        os.environ |= {"XDG_STATE_HOME": str(place / "state")}
        self.directory = record_cluster("plain", MANIFEST, "local")
        path = str(self.directory.path)
        self.scheduler = _start("scheduler", path, *options)
        written = self.directory.path / "plain"
        until(written.exists, "Dask's scheduler")
        self.address = written.read_text()
        tls = self.address.startswith("tls")
        self.security = security_of(self.directory.pem()) if tls else False
        self.client = Client(self.address, security=self.security)
        self._workers = _start("workers", path, self.address, stdin=subprocess.PIPE)
        self._orders = 0

    def call(self, handler: str, **arguments: Any) -> Any:
        """Call a handler of the scheduler."""
        return self.client.sync(getattr(self.client.scheduler, handler), **arguments)

    def scale(self, count: int) -> None:
        """Start or end simulated workers, and wait until as many are connected."""
        more = count - self.call(COUNT)
        self._orders += 1
        order = f"add w{self._orders} {more}" if more > 0 else f"leave {-more}"
        assert self._workers.stdin is not None
        self._workers.stdin.write(f"{order}\n".encode())
        self._workers.stdin.flush()
        until(lambda: self.call(COUNT) == count, "workers")

    def close(self) -> None:
        """End everything."""
        self.client.close()
        for program in (self.scheduler, self._workers):
            program.terminate()
            program.wait(60)


def _start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "plain_bed.py"), *arguments], **options)


def _security(directory: ClusterDirectory, *, tls: bool) -> Security | None:
    return security_of(directory.pem()) if tls else None


async def schedule(directory: ClusterDirectory, *, tls: bool) -> None:
    """Run Dask's scheduler until it is terminated."""
    gc.set_threshold(*(3 * each for each in gc.get_threshold()))  # as ``dask scheduler`` does
    meter = LoopMeter()
    meter.install(WHOLE, {}, FOLLOWED)
    # Ours does not remove workers whose heartbeats are late, as with many of them in one process.
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        scheduler = Scheduler(
            host="127.0.0.1", port=0, dashboard=False, protocol="tls://" if tls else "tcp://",
            security=_security(directory, tls=tls),
        )  # fmt: skip
    async with scheduler:
        offer_measures(scheduler, meter)
        end = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
        write_whole(directory.path / "plain", scheduler.address)
        await end.wait()


async def work(directory: ClusterDirectory, address: str) -> None:
    """Start and end simulated workers, as the standard input says."""
    open_many_files()
    collect_seldom()
    security = _security(directory, tls=address.startswith("tls"))
    workers = SimulatedWorkers(address, security=security)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "add":
            await workers.add([f"{line[1]}-{number}" for number in range(int(line[2]))], TAG)
        else:
            await workers.end(int(line[1]))


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    directory = ClusterDirectory(Path(sys.argv[2]))
    if sys.argv[1] == "scheduler":
        asyncio.run(schedule(directory, tls="--plain-tcp" not in sys.argv))
    else:
        asyncio.run(work(directory, sys.argv[3]))


if __name__ == "__main__":
    main()
